//! Recipes as Python has them: what is read, and what is refused.
#![allow(clippy::unwrap_used)]
use super::*;

const RECIPE: &str = r#""""A recipe.
torchrun --nproc-per-node 8 --nnodes 2 recipe.py
"""
import torch
from megatron.bridge.training.config import (
    ConfigContainer,  # (
)


def recipe() -> ConfigContainer:
    cfg = ConfigContainer(
        model=AutoBridge.from_hf_pretrained("a/b").to_megatron_provider(load_weights=False),
        train=TrainingConfig(micro_batch_size=2, train_iters=50),
    )
    cfg.model.window_size = (127, 0)
    cfg.train.micro_batch_size = 1_0
    cfg.optimizer = OptimizerConfig(lr=1e-4, exp_avg_dtype=torch.bfloat16)
    return cfg


if __name__ == "__main__":
    pretrain(recipe(), forward_step)
"#;

#[test]
fn literals_are_read_by_the_paths_of_their_fields() {
    let found = read_recipe(RECIPE).unwrap();
    assert!(found.description.contains("--nnodes 2"));
    assert_eq!(found.provider, ("AutoBridge.from_hf_pretrained".to_owned(), Some("a/b".to_owned())));
    let shown: Vec<String> =
        found.fields.iter().map(|(path, (value, line))| format!("{path}={value}@{line}")).collect();
    let expected = [
        "model.window_size=(127, 0)@15",
        "optimizer.exp_avg_dtype=torch.bfloat16@17",
        "optimizer.lr=1e-4@17",
        "train.micro_batch_size=1_0@16",
        "train.train_iters=50@13",
    ];
    assert_eq!(shown, expected);
}

/// Python would not run these lines in the order in which they stand.
#[test]
fn lines_that_python_would_not_run_in_order_are_refused() {
    let with = |old: &str, new: &str| read_recipe(&RECIPE.replace(old, new)).unwrap_err().1;
    for (old, new, why) in [
        ("    return cfg\n", "    return cfg\n    cfg.model.num_layers = 4\n", "after the function's return"),
        ("def recipe()", "def other():\n    pass_by = OptimizerConfig(lr=1)\n\n\ndef recipe()", "second function"),
        ("    cfg.train", "    cfg = ConfigContainer(train=1)\n    cfg.train", "second configuration"),
        ("name__ ==", "name__ !=", "a condition is not read"),
        ("import torch\n", "import os; os.system(\"x\")\n", "second statement"),
        ("ConfigContainer:\n", "ConfigContainer: x = 5\n", "goes on"),
        ("lr=1e-4", "lr=1e-4, lr=2e-4", "given twice"),
        ("OptimizerConfig(lr", "OptimizerConfig(\"sgd\", lr", "has no keyword"),
    ] {
        let said = with(old, new);
        assert!(said.contains(why), "{new}: {said}");
    }
}

#[test]
fn variables_stand_for_their_configurations() {
    let text = "m = GPTModelProvider(num_layers=2)\ncfg = ConfigContainer(model=m)\nm.hidden_size = 8\n\
                cfg.model.kv_channels = 4\n";
    let found = read_recipe(text).unwrap();
    let paths: Vec<&str> = found.fields.keys().map(String::as_str).collect();
    assert_eq!(paths, ["model.hidden_size", "model.kv_channels", "model.num_layers"]);
}

#[test]
fn what_is_no_literal_is_refused_with_its_line() {
    let of = |line: &str| read_recipe(&format!("cfg = ConfigContainer(model=GPTModelProvider())\n{line}\n"));
    for (line, why) in [
        ("cfg.model.num_layers = 2 * 3", "no literal"),
        ("cfg.model.num_layers = len('abc')", "calls len"),
        ("cfg = _pretrain_common()", "calls _pretrain_common"),
        ("for layer in range(3):", "not given a value"),
        ("cfg.model.num_layers += 1", "not given a value"),
        ("cfg.model.name = f'{x}'", "prefix f"),
        ("if cfg.model.bf16:", "condition"),
        ("def recipe(tensor):", "parameters"),
        ("other.model = 3", "no configuration"),
        ("layers = 3", "another kind"),
        ("cfg.model.x = 'abc", "no end"),
        ("cfg.model.x = {'a': 1}", "no literal"),
        ("cfg.model.x = [1", "list"),
        ("lambda: 3", "not given a value"),
        ("@decorated", "no assignment"),
    ] {
        let (number, reason) = of(line).unwrap_err();
        assert!((2..=3).contains(&number) && reason.contains(why), "{line}: {number}: {reason}");
    }
    assert!(read_recipe("").unwrap_err().1.contains("must make one ConfigContainer"));
    assert!(read_recipe(&"(".repeat(1 << 20)).is_err());
    let circle = "a = ConfigContainer()\nb = GPTModelProvider(x=a)\na.model = b\nb.x = b\n";
    assert!(read_recipe(circle).unwrap_err().1.contains("inside itself"));
}
