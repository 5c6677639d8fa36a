"""The signatures of the verbs. `tools/make_stubs.py` writes this file from the command's table of options."""

import os
from typing import Any, Dict, List as _List, Literal, Sequence, Union

from coplace._answers import Answer
from coplace._asking import Question
from coplace._inputs import Chip, Fabric, Model, Stack, Study

_Path = Union[str, os.PathLike[str]]
_Scalar = Union[str, int, float]

__all__ = ["search", "sweep", "merge", "explain", "init", "evaluate", "plan", "compare", "pareto", "report", "validate", "calibrate", "place", "schedule", "scalesim", "calculon", "techniques", "serve", "list", "doctor"]

class _SearchVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *models: _Path | Model,
        question: _Path | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        headroom_gib: float | None = None,
        fit: float | None = None,
        sequence_length: int | None = None,
        mtp_layers: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        max_area: float | None = None,
        max_power: float | None = None,
        max_cost: float | None = None,
        min_hbm_gib: float | None = None,
        max_hbm_gib: float | None = None,
        min_hbm_bandwidth: float | None = None,
        no_build_limits: bool | None = None,
        efficiency: _Scalar | None = None,
        max_step: float | None = None,
        node: _Scalar | None = None,
        hbm_stacks: int | None = None,
        set: _Scalar | Sequence[_Scalar] | None = None,
        devices: int | None = None,
        fabric: _Path | Fabric | None = None,
        global_batch: int | None = None,
        objective: _Scalar | None = None,
        years: float | None = None,
        kwh_price: float | None = None,
        pue: float | None = None,
        utilisation: float | None = None,
        dollars: _Scalar | None = None,
        over: _Scalar | None = None,
        time_limit: float | None = None,
        within: float | None = None,
        front: _Scalar | Sequence[_Scalar] | None = None,
        robust: bool | None = None,
        out: _Path | None = None,
        seed: int | None = None,
        draws: int | None = None,
        details: bool | None = None,
        share: _Path | None = None,
        shard: _Scalar | None = None,
        parts: int | None = None,
        slurm: _Scalar | Sequence[_Scalar] | None = None,
    ) -> Answer:
        """Search for the accelerator on which a model trains fastest, and for its plan."""
    def question(
        self,
        *models: _Path | Model,
        question: _Path | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        headroom_gib: float | None = None,
        fit: float | None = None,
        sequence_length: int | None = None,
        mtp_layers: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        max_area: float | None = None,
        max_power: float | None = None,
        max_cost: float | None = None,
        min_hbm_gib: float | None = None,
        max_hbm_gib: float | None = None,
        min_hbm_bandwidth: float | None = None,
        no_build_limits: bool | None = None,
        efficiency: _Scalar | None = None,
        max_step: float | None = None,
        node: _Scalar | None = None,
        hbm_stacks: int | None = None,
        set: _Scalar | Sequence[_Scalar] | None = None,
        devices: int | None = None,
        fabric: _Path | Fabric | None = None,
        global_batch: int | None = None,
        objective: _Scalar | None = None,
        years: float | None = None,
        kwh_price: float | None = None,
        pue: float | None = None,
        utilisation: float | None = None,
        dollars: _Scalar | None = None,
        over: _Scalar | None = None,
        time_limit: float | None = None,
        within: float | None = None,
        front: _Scalar | Sequence[_Scalar] | None = None,
        robust: bool | None = None,
        out: _Path | None = None,
        seed: int | None = None,
        draws: int | None = None,
        details: bool | None = None,
        share: _Path | None = None,
        shard: _Scalar | None = None,
        parts: int | None = None,
        slurm: _Scalar | Sequence[_Scalar] | None = None,
    ) -> Question: ...

search: _SearchVerb

class _SweepVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *models: _Path | Model,
        question: _Path | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        headroom_gib: float | None = None,
        fit: float | None = None,
        sequence_length: int | None = None,
        mtp_layers: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        max_area: float | None = None,
        max_power: float | None = None,
        max_cost: float | None = None,
        min_hbm_gib: float | None = None,
        max_hbm_gib: float | None = None,
        min_hbm_bandwidth: float | None = None,
        no_build_limits: bool | None = None,
        efficiency: _Scalar | None = None,
        max_step: float | None = None,
        node: _Scalar | None = None,
        hbm_stacks: int | None = None,
        set: _Scalar | Sequence[_Scalar] | None = None,
        devices: int | None = None,
        fabric: _Path | Fabric | None = None,
        global_batch: int | None = None,
        objective: _Scalar | None = None,
        years: float | None = None,
        kwh_price: float | None = None,
        pue: float | None = None,
        utilisation: float | None = None,
        dollars: _Scalar | None = None,
        robust: bool | None = None,
        out: _Path | None = None,
        resume: bool | None = None,
        details: bool | None = None,
        shard: _Scalar | None = None,
        parts: int | None = None,
        slurm: _Scalar | Sequence[_Scalar] | None = None,
        over: _Scalar | None = None,
        time_limit: float | None = None,
        within: float | None = None,
        front: _Scalar | Sequence[_Scalar] | None = None,
    ) -> Answer:
        """Evaluate every design of a study under its best plan, for one model: for maps and sensitivities."""
    def question(
        self,
        *models: _Path | Model,
        question: _Path | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        headroom_gib: float | None = None,
        fit: float | None = None,
        sequence_length: int | None = None,
        mtp_layers: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        max_area: float | None = None,
        max_power: float | None = None,
        max_cost: float | None = None,
        min_hbm_gib: float | None = None,
        max_hbm_gib: float | None = None,
        min_hbm_bandwidth: float | None = None,
        no_build_limits: bool | None = None,
        efficiency: _Scalar | None = None,
        max_step: float | None = None,
        node: _Scalar | None = None,
        hbm_stacks: int | None = None,
        set: _Scalar | Sequence[_Scalar] | None = None,
        devices: int | None = None,
        fabric: _Path | Fabric | None = None,
        global_batch: int | None = None,
        objective: _Scalar | None = None,
        years: float | None = None,
        kwh_price: float | None = None,
        pue: float | None = None,
        utilisation: float | None = None,
        dollars: _Scalar | None = None,
        robust: bool | None = None,
        out: _Path | None = None,
        resume: bool | None = None,
        details: bool | None = None,
        shard: _Scalar | None = None,
        parts: int | None = None,
        slurm: _Scalar | Sequence[_Scalar] | None = None,
        over: _Scalar | None = None,
        time_limit: float | None = None,
        within: float | None = None,
        front: _Scalar | Sequence[_Scalar] | None = None,
    ) -> Question: ...

sweep: _SweepVerb

class _MergeVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *parts: _Path | Answer,
        out: _Path,
        details: bool | None = None,
    ) -> Answer:
        """Merge the parts of a sweep or of a search."""
    def question(
        self,
        *parts: _Path | Answer,
        out: _Path,
        details: bool | None = None,
    ) -> Question: ...

merge: _MergeVerb

class _ExplainVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        run: _Path | Answer,
        *,
        chip: _Path | Chip | Sequence[_Path | Chip] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        attention_data: int | None = None,
        expert: int | None = None,
        context_parallel: int | None = None,
    ) -> Answer:
        """Explain why a run's design or deployment is the best: its bottleneck, and what its neighbours or alternatives
        give."""
    def question(
        self,
        run: _Path | Answer,
        *,
        chip: _Path | Chip | Sequence[_Path | Chip] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        attention_data: int | None = None,
        expert: int | None = None,
        context_parallel: int | None = None,
    ) -> Question: ...

explain: _ExplainVerb

class _InitVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        file: _Path | None = None,
        *,
        study: _Path | Study | None = None,
    ) -> Answer:
        """Write a first study with every key explained, and its JSON Schema for editors."""
    def question(
        self,
        file: _Path | None = None,
        *,
        study: _Path | Study | None = None,
    ) -> Question: ...

init: _InitVerb

class _EvaluateVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        from_: _Path | None = None,
        fabric: _Path | Fabric | None = None,
        fast_domain: int | None = None,
        devices: int | None = None,
        global_batch: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        mtp_layers: int | None = None,
        capacity_factor: float | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        headroom_gib: float | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        nvme: _Scalar | None = None,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        lora_targets: _Scalar | Sequence[_Scalar] | None = None,
        allow: _Scalar | Sequence[_Scalar] | None = None,
        tensor: _Scalar | Sequence[_Scalar] | None = None,
        pipeline: _Scalar | Sequence[_Scalar] | None = None,
        data: _Scalar | Sequence[_Scalar] | None = None,
        context: _Scalar | Sequence[_Scalar] | None = None,
        context_method: Literal["ring", "ulysses"] | Sequence[Literal["ring", "ulysses"]] | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        expert_tensor: _Scalar | Sequence[_Scalar] | None = None,
        virtual_stages: _Scalar | Sequence[_Scalar] | None = None,
        schedule: Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"] | Sequence[Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"]] | None = None,
        zero: _Scalar | Sequence[_Scalar] | None = None,
        shards: _Scalar | Sequence[_Scalar] | None = None,
        micro_batch: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | Sequence[_Scalar] | None = None,
        sequence_parallel: bool | None = None,
        layer_split: _Scalar | Sequence[_Scalar] | None = None,
        order: Literal["t-d-p", "t-p-d"] | Sequence[Literal["t-d-p", "t-p-d"]] | None = None,
        kernels: bool | None = None,
        trace: _Path | None = None,
        chakra: _Path | None = None,
        memory: _Path | None = None,
        details: bool | None = None,
    ) -> Answer:
        """Evaluate one plan of a model on a cluster: time, memory, energy, and the bound of each kernel."""
    def question(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        from_: _Path | None = None,
        fabric: _Path | Fabric | None = None,
        fast_domain: int | None = None,
        devices: int | None = None,
        global_batch: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        mtp_layers: int | None = None,
        capacity_factor: float | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        headroom_gib: float | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        nvme: _Scalar | None = None,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        lora_targets: _Scalar | Sequence[_Scalar] | None = None,
        allow: _Scalar | Sequence[_Scalar] | None = None,
        tensor: _Scalar | Sequence[_Scalar] | None = None,
        pipeline: _Scalar | Sequence[_Scalar] | None = None,
        data: _Scalar | Sequence[_Scalar] | None = None,
        context: _Scalar | Sequence[_Scalar] | None = None,
        context_method: Literal["ring", "ulysses"] | Sequence[Literal["ring", "ulysses"]] | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        expert_tensor: _Scalar | Sequence[_Scalar] | None = None,
        virtual_stages: _Scalar | Sequence[_Scalar] | None = None,
        schedule: Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"] | Sequence[Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"]] | None = None,
        zero: _Scalar | Sequence[_Scalar] | None = None,
        shards: _Scalar | Sequence[_Scalar] | None = None,
        micro_batch: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | Sequence[_Scalar] | None = None,
        sequence_parallel: bool | None = None,
        layer_split: _Scalar | Sequence[_Scalar] | None = None,
        order: Literal["t-d-p", "t-p-d"] | Sequence[Literal["t-d-p", "t-p-d"]] | None = None,
        kernels: bool | None = None,
        trace: _Path | None = None,
        chakra: _Path | None = None,
        memory: _Path | None = None,
        details: bool | None = None,
    ) -> Question: ...

evaluate: _EvaluateVerb

class _PlanVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        from_: _Path | None = None,
        fabric: _Path | Fabric | None = None,
        fast_domain: int | None = None,
        devices: int | None = None,
        global_batch: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        mtp_layers: int | None = None,
        capacity_factor: float | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        headroom_gib: float | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        nvme: _Scalar | None = None,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        lora_targets: _Scalar | Sequence[_Scalar] | None = None,
        allow: _Scalar | Sequence[_Scalar] | None = None,
        tensor: _Scalar | Sequence[_Scalar] | None = None,
        pipeline: _Scalar | Sequence[_Scalar] | None = None,
        data: _Scalar | Sequence[_Scalar] | None = None,
        context: _Scalar | Sequence[_Scalar] | None = None,
        context_method: Literal["ring", "ulysses"] | Sequence[Literal["ring", "ulysses"]] | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        expert_tensor: _Scalar | Sequence[_Scalar] | None = None,
        virtual_stages: _Scalar | Sequence[_Scalar] | None = None,
        schedule: Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"] | Sequence[Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"]] | None = None,
        zero: _Scalar | Sequence[_Scalar] | None = None,
        shards: _Scalar | Sequence[_Scalar] | None = None,
        micro_batch: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | Sequence[_Scalar] | None = None,
        sequence_parallel: bool | None = None,
        layer_split: _Scalar | Sequence[_Scalar] | None = None,
        order: Literal["t-d-p", "t-p-d"] | Sequence[Literal["t-d-p", "t-p-d"]] | None = None,
        top: int | None = None,
        fit: float | None = None,
        robust: bool | None = None,
        everything: bool | None = None,
        links: _Path | None = None,
        links_of: _Scalar | None = None,
        links_between: Literal["nodes", "devices"] | None = None,
        map_ranks: bool | None = None,
        emit: Literal["megatron", "megatron-bridge", "maxtext", "torchtitan", "deepspeed", "nanotron", "torch", "piper"] | None = None,
        trace: _Path | None = None,
        memory: _Path | None = None,
        tokens: int | None = None,
        usd_per_device_hour: float | None = None,
        time_limit: float | None = None,
        details: bool | None = None,
    ) -> Answer:
        """Find the fastest plans of a model on an existing cluster, and explain why their neighbours are slower."""
    def question(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        from_: _Path | None = None,
        fabric: _Path | Fabric | None = None,
        fast_domain: int | None = None,
        devices: int | None = None,
        global_batch: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        mtp_layers: int | None = None,
        capacity_factor: float | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        headroom_gib: float | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        nvme: _Scalar | None = None,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        lora_targets: _Scalar | Sequence[_Scalar] | None = None,
        allow: _Scalar | Sequence[_Scalar] | None = None,
        tensor: _Scalar | Sequence[_Scalar] | None = None,
        pipeline: _Scalar | Sequence[_Scalar] | None = None,
        data: _Scalar | Sequence[_Scalar] | None = None,
        context: _Scalar | Sequence[_Scalar] | None = None,
        context_method: Literal["ring", "ulysses"] | Sequence[Literal["ring", "ulysses"]] | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        expert_tensor: _Scalar | Sequence[_Scalar] | None = None,
        virtual_stages: _Scalar | Sequence[_Scalar] | None = None,
        schedule: Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"] | Sequence[Literal["1f1b", "gpipe", "zb-h1", "zb-v", "v-half", "v-min", "dualpipe-v"]] | None = None,
        zero: _Scalar | Sequence[_Scalar] | None = None,
        shards: _Scalar | Sequence[_Scalar] | None = None,
        micro_batch: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | Sequence[_Scalar] | None = None,
        sequence_parallel: bool | None = None,
        layer_split: _Scalar | Sequence[_Scalar] | None = None,
        order: Literal["t-d-p", "t-p-d"] | Sequence[Literal["t-d-p", "t-p-d"]] | None = None,
        top: int | None = None,
        fit: float | None = None,
        robust: bool | None = None,
        everything: bool | None = None,
        links: _Path | None = None,
        links_of: _Scalar | None = None,
        links_between: Literal["nodes", "devices"] | None = None,
        map_ranks: bool | None = None,
        emit: Literal["megatron", "megatron-bridge", "maxtext", "torchtitan", "deepspeed", "nanotron", "torch", "piper"] | None = None,
        trace: _Path | None = None,
        memory: _Path | None = None,
        tokens: int | None = None,
        usd_per_device_hour: float | None = None,
        time_limit: float | None = None,
        details: bool | None = None,
    ) -> Question: ...

plan: _PlanVerb

class _CompareVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *directories: _Path | Answer,
        freedoms: bool | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        sequence_length: int | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        evaluations: int | None = None,
        seed: int | None = None,
        out: _Path | None = None,
        details: bool | None = None,
    ) -> Answer:
        """Compare the best designs and the baselines of run directories, answers of evaluate and plan, or the value of
        each freedom of a search."""
    def question(
        self,
        *directories: _Path | Answer,
        freedoms: bool | None = None,
        study: _Path | Study | None = None,
        stack: _Path | Stack | None = None,
        sequence_length: int | None = None,
        expert: _Scalar | Sequence[_Scalar] | None = None,
        evaluations: int | None = None,
        seed: int | None = None,
        out: _Path | None = None,
        details: bool | None = None,
    ) -> Question: ...

compare: _CompareVerb

class _ParetoVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *directories: _Path | Answer,
        out: _Path,
        x: _Scalar | None = None,
        y: _Scalar | None = None,
        z: _Scalar | None = None,
    ) -> Answer:
        """Draw one or more runs along the axes of their front, and list the designs on it."""
    def question(
        self,
        *directories: _Path | Answer,
        out: _Path,
        x: _Scalar | None = None,
        y: _Scalar | None = None,
        z: _Scalar | None = None,
    ) -> Question: ...

pareto: _ParetoVerb

class _ReportVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        run: _Path | Answer,
        *,
        out: _Path | None = None,
        model: _Path | Model | None = None,
        chip: _Path | Chip | None = None,
        fabric: _Path | Fabric | None = None,
        stack: _Path | Stack | None = None,
    ) -> Answer:
        """Write a run as one HTML page without external resources: the answer, the chip, the designs, the kernels, the
        step and the proof."""
    def question(
        self,
        run: _Path | Answer,
        *,
        out: _Path | None = None,
        model: _Path | Model | None = None,
        chip: _Path | Chip | None = None,
        fabric: _Path | Fabric | None = None,
        stack: _Path | Stack | None = None,
    ) -> Question: ...

report: _ReportVerb

class _ValidateVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *files: _Path,
        techniques: bool | None = None,
        hindcast: _Scalar | Sequence[_Scalar] | None = None,
        held_out: bool | None = None,
        residuals: _Path | None = None,
        intervals: _Path | None = None,
        predictions: _Path | None = None,
        plot: _Path | None = None,
        breakdown: _Path | None = None,
        stacks: _Path | None = None,
        chips: _Path | None = None,
    ) -> Answer:
        """Predict every row of measured data, and report the errors."""
    def question(
        self,
        *files: _Path,
        techniques: bool | None = None,
        hindcast: _Scalar | Sequence[_Scalar] | None = None,
        held_out: bool | None = None,
        residuals: _Path | None = None,
        intervals: _Path | None = None,
        predictions: _Path | None = None,
        plot: _Path | None = None,
        breakdown: _Path | None = None,
        stacks: _Path | None = None,
        chips: _Path | None = None,
    ) -> Question: ...

validate: _ValidateVerb

class _CalibrateVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        chip: _Path | Chip | None = None,
        data: _Path | None = None,
        *,
        script: _Path | None = None,
        only: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Answer:
        """Fit a chip's physical scalars to measured kernels, a fabric's to measured collectives, or a software stack's
        to measured runs."""
    def question(
        self,
        chip: _Path | Chip | None = None,
        data: _Path | None = None,
        *,
        script: _Path | None = None,
        only: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Question: ...

calibrate: _CalibrateVerb

class _PlaceVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *files: _Path,
    ) -> Answer:
        """Place NEST and PHAZE instances and Piper graphs on devices: the optimum under the formulas of each."""
    def question(
        self,
        *files: _Path,
    ) -> Question: ...

place: _PlaceVerb

class _ScheduleVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *files: _Path,
        time_limit: float | None = None,
        steps: int | None = None,
        method: Literal["auto", "search", "ilp"] | None = None,
        solver: Literal["microlp", "highs"] | None = None,
    ) -> Answer:
        """Schedule operator graphs on tensor and vector cores: the optimum, proven."""
    def question(
        self,
        *files: _Path,
        time_limit: float | None = None,
        steps: int | None = None,
        method: Literal["auto", "search", "ilp"] | None = None,
        solver: Literal["microlp", "highs"] | None = None,
    ) -> Question: ...

schedule: _ScheduleVerb

class _ScalesimVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        config: _Path,
        topology: _Path,
        *,
        input: Literal["conv", "gemm"] | None = None,
        report: _Path | None = None,
        stall_free: bool | None = None,
    ) -> Answer:
        """Count the cycles of SCALE-Sim's layers on SCALE-Sim's array, as its compute report does."""
    def question(
        self,
        config: _Path,
        topology: _Path,
        *,
        input: Literal["conv", "gemm"] | None = None,
        report: _Path | None = None,
        stall_free: bool | None = None,
    ) -> Question: ...

scalesim: _ScalesimVerb

class _CalculonVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        model: _Path | Model,
        execution: _Path,
        system: _Path,
        *,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        vocabulary: int | None = None,
    ) -> Answer:
        """Run one row of Calculon's format: the step by parts, the memory by class, and Calculon's own figures of equal
        meaning."""
    def question(
        self,
        model: _Path | Model,
        execution: _Path,
        system: _Path,
        *,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        vocabulary: int | None = None,
    ) -> Question: ...

calculon: _CalculonVerb

class _TechniquesVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        fabric: _Path | Fabric | None = None,
        devices: int | None = None,
        sort: Literal["fastest", "memory", "longest", "listed"] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        data: int | None = None,
        context: int | None = None,
        expert: int | None = None,
        zero: int | None = None,
        micro_batch: int | None = None,
        accumulate: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        no_master: bool | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        nvme: _Scalar | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Answer:
        """Compare memory techniques on one model and chip: memory by class, step time, longest sequence and largest
        micro-batch."""
    def question(
        self,
        model: _Path | Model,
        *,
        chip: _Path | Chip,
        technique: _Scalar | Sequence[_Scalar] | None = None,
        fabric: _Path | Fabric | None = None,
        devices: int | None = None,
        sort: Literal["fastest", "memory", "longest", "listed"] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        data: int | None = None,
        context: int | None = None,
        expert: int | None = None,
        zero: int | None = None,
        micro_batch: int | None = None,
        accumulate: int | None = None,
        sequence_length: int | None = None,
        documents: _Scalar | Sequence[_Scalar] | None = None,
        recompute: _Scalar | None = None,
        stack: _Path | Stack | None = None,
        stack_option: _Scalar | Sequence[_Scalar] | None = None,
        attention: Literal["fused", "unfused"] | None = None,
        precision: Literal["bf16", "fp16", "fp8", "int8", "mxfp8", "nvfp4", "mxfp4"] | None = None,
        no_master: bool | None = None,
        states: Literal["fp32", "bf16", "fp16", "fp8"] | None = None,
        gradients: Literal["fp32", "bf16", "fp16"] | None = None,
        master: Literal["fp32", "none"] | None = None,
        loss: Literal["whole", "chunked"] | None = None,
        optimizer: Literal["sgd", "momentum", "adam", "adam8bit", "adafactor", "muon"] | None = None,
        nvme: _Scalar | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Question: ...

techniques: _TechniquesVerb

class _ServeVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        model: _Path | Model | None = None,
        *,
        chip: _Path | Chip | Sequence[_Path | Chip] | None = None,
        study: _Path | Study | None = None,
        fabric: _Path | Fabric | None = None,
        devices: int | None = None,
        engine: _Scalar | None = None,
        input: int | Sequence[int] | None = None,
        output: int | Sequence[int] | None = None,
        lengths: _Scalar | None = None,
        ttft: float | Sequence[float] | None = None,
        tpot: float | Sequence[float] | None = None,
        pools: Literal["together", "apart", "any"] | None = None,
        products: _Scalar | None = None,
        experts: _Scalar | None = None,
        cache: Literal["bf16", "fp8"] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        attention_data: int | None = None,
        expert: int | None = None,
        context_parallel: int | None = None,
        draft: int | None = None,
        accepted: float | None = None,
        draft_model: _Scalar | None = None,
        prefix_hit: float | None = None,
        prefix_tokens: int | None = None,
        cache_place: Literal["device", "host", "nvme"] | None = None,
        cache_away: float | None = None,
        technique: _Scalar | None = None,
        nvme: _Scalar | None = None,
        train_weight: float | None = None,
        objective: _Scalar | None = None,
        beside: _Path | None = None,
        top: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Answer:
        """Find the deployment that serves most tokens within limits on the time to the first token and between tokens."""
    def question(
        self,
        model: _Path | Model | None = None,
        *,
        chip: _Path | Chip | Sequence[_Path | Chip] | None = None,
        study: _Path | Study | None = None,
        fabric: _Path | Fabric | None = None,
        devices: int | None = None,
        engine: _Scalar | None = None,
        input: int | Sequence[int] | None = None,
        output: int | Sequence[int] | None = None,
        lengths: _Scalar | None = None,
        ttft: float | Sequence[float] | None = None,
        tpot: float | Sequence[float] | None = None,
        pools: Literal["together", "apart", "any"] | None = None,
        products: _Scalar | None = None,
        experts: _Scalar | None = None,
        cache: Literal["bf16", "fp8"] | None = None,
        tensor: int | None = None,
        pipeline: int | None = None,
        attention_data: int | None = None,
        expert: int | None = None,
        context_parallel: int | None = None,
        draft: int | None = None,
        accepted: float | None = None,
        draft_model: _Scalar | None = None,
        prefix_hit: float | None = None,
        prefix_tokens: int | None = None,
        cache_place: Literal["device", "host", "nvme"] | None = None,
        cache_away: float | None = None,
        technique: _Scalar | None = None,
        nvme: _Scalar | None = None,
        train_weight: float | None = None,
        objective: _Scalar | None = None,
        beside: _Path | None = None,
        top: int | None = None,
        assume: _Scalar | Sequence[_Scalar] | None = None,
        out: _Path | None = None,
    ) -> Question: ...

serve: _ServeVerb

class _ListVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        what: Literal["models", "chips", "fabrics", "studies", "stacks", "engines", "techniques", "dimensions", "constants"],
        *,
        family: bool | None = None,
        chip: _Path | Chip | None = None,
        fabric: _Path | Fabric | None = None,
    ) -> Answer:
        """List the built-in models, chips, fabrics, studies, software stacks, serving engines or memory techniques, or
        the dimensions that a study may vary."""
    def question(
        self,
        what: Literal["models", "chips", "fabrics", "studies", "stacks", "engines", "techniques", "dimensions", "constants"],
        *,
        family: bool | None = None,
        chip: _Path | Chip | None = None,
        fabric: _Path | Fabric | None = None,
    ) -> Question: ...

list: _ListVerb

class _DoctorVerb:
    options: _List[Dict[str, Any]]
    def __call__(
        self,
        *,
        runs: _Path | None = None,
    ) -> Answer:
        """Check the installation: the machine, the built-in files, and the runs in a directory."""
    def question(
        self,
        *,
        runs: _Path | None = None,
    ) -> Question: ...

doctor: _DoctorVerb
