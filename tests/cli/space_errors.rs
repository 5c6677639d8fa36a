//! Faults of a design space, from the outside.

use crate::search::RELATIVES;
use crate::support::{config_with, run_coplace_in};

#[test]
fn what_is_wrong_with_a_space_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |dimensions: &str, more: &[&str]| {
        let (head, rest) = RELATIVES.split_once("\"tensor.arrays_per_core\" = [2, 4, 8]").unwrap();
        std::fs::write(dir.path().join("s.toml"), format!("{head}{dimensions}{rest}")).unwrap();
        let call = [&["search", "opt-350m", "--study", "s.toml", "--sequence-length", "1024"][..], more].concat();
        run_coplace_in(dir.path(), &call).expect_refusal()
    };
    for (dimensions, why) in [
        (
            "\"tensor.arays\" = [2]",
            "s.toml, line 10: space.dimensions.tensor.arays = 2: unknown field `arays`, expected one of `cores`, \
            `arrays_per_core`",
        ),
        (
            "\"memory.l3.ports\" = [2]",
            "s.toml, line 10: space.dimensions.memory.l3.ports: there is no such table; use a field of tpu_v4.toml's \
            file",
        ),
        (
            "\"tensor.cores\" = [2.5]",
            "s.toml, line 10: space.dimensions.tensor.cores = 2.5: invalid type: floating point `2.5`, expected a \
            whole number",
        ),
        (
            "n = -2\n\"area.fp32_units\" = \"n\"",
            "s.toml, line 11: space.dimensions.area.fp32_units = -2: invalid value: integer `-2`",
        ),
        ("\"area.node\" = [7]", "s.toml, line 10: space.dimensions.area.node = 7: invalid type: integer `7`"),
        (
            "\"area.node\" = [\"n7\", \"n5\"]\n\"vector.lanes\" = { by = \"area.node\", values = { n7 = 64 } }",
            "s.toml, line 11: space.dimensions.vector.lanes = { by = \"area.node\", values = { n7 = 64 } }: has no \
            value for area.node = n5",
        ),
        (
            "\"tensor.rows\" = []",
            "s.toml, line 10: space.dimensions.tensor.rows = []: needs 1 to 65536 values; list the values to try",
        ),
        (
            "\"tensor.rows\" = \"tensor.rows * 2\"",
            "space.dimensions.tensor.rows = \"tensor.rows * 2\": it refers to itself (tensor.rows -> tensor.rows)",
        ),
        (
            "a = [0]\n\"tensor.rows\" = \"64 / a\"",
            "s.toml, line 11: space.dimensions.tensor.rows = \"64 / a\": is inf where a = 0: it divides by zero",
        ),
        ("stacks = [4]", "space.dimensions.stacks: the chip has no such field and no other dimension refers to it"),
        ("\"memory.hbm.capacity_gib\" = [0.001]", "space.dimensions: no combination is a chip: "),
        (
            "\"published.tdp_w\" = [100]",
            "space.dimensions.published.tdp_w: is a measurement or publication about a built chip and cannot vary; \
            remove it",
        ),
        ("\"fabric.tier.nvlink.devices\" = [8]", "fabric.tier.nvlink.devices = 8: there is no such table"),
        (
            "\"tensor.rows\" = \"foo(tensor.columns)\"",
            "s.toml, line 10: space.dimensions.tensor.rows = \"foo(tensor.columns)\": foo is no known function; write \
            plain numbers, ",
        ),
    ] {
        let message = refused(dimensions, &[]);
        assert!(message.contains(why), "{dimensions}: {message}");
    }
    for (flags, why) in [
        (&["--max-area", "-1"][..], "--max-area -1: must be positive and finite; give a limit, or leave it out"),
        (&["--set", "cores"], "--set cores: is no KEY=VALUE; write --set tensor.cores=4, for instance"),
        (
            &["--set", "area.links=3", "--set", "area.links=6"],
            "--set area.links=6: area.links is given already (--set area.links=3); give each key once",
        ),
        (
            &["--set", "area.node=n7", "--node", "n5"],
            "--node n5: area.node is given already (--set area.node=n7); give it once",
        ),
        (&["--draws", "1"], "--draws 1: a dimension is settled in nine of ten draws"),
        (&["--hbm-stacks", "4"], "--hbm-stacks 4: study s.toml has no dimension hbm_stacks; it has area.links, "),
        (
            &["--objective", "speed"],
            "use one of throughput, step-time, per-mm2, per-watt, per-dollar, energy-per-token",
        ),
        (&["--node", "n2"], "--node n2: area.node = n2: unknown variant `n2`"),
        (&["--set", "clock_mhz=nan"], "error: --set clock_mhz=nan: must be finite; "),
        (&["--set", "clock_mhz="], "error: --set clock_mhz=: has no value; write --set clock_mhz=VALUE"),
        (
            &["--set", "tensor.cores=2.5"],
            "error: --set tensor.cores=2.5: tensor.cores = 2.5: invalid type: floating point",
        ),
    ] {
        let message = refused("", flags);
        assert!(message.contains(why), "{flags:?}: {message}");
    }
    for (of, by, why) in [
        ("base_chip = \"tpu_v4\"", "base_chip = \"tpu_v0\"", "s.toml, line 6: space.base_chip: unknown chip `tpu_v0`"),
        (
            "max_area_mm2 = 700",
            "max_area_mm2 = nan",
            "s.toml, line 7: space.max_area_mm2 = NaN: must be positive and finite",
        ),
        ("fabric = \"tpu_v4_ici\"", "fabric = \"string\"", "s.toml, line 18: cluster.fabric: unknown fabric `string`"),
        (
            "[limits]",
            "[[workload]]\nmodel = \"opt-350m\"\n[[workload]]\nmodel = \"bert-large\"\nweight = nan\n[limits]",
            "s.toml, line 35: workload.weight = NaN: must be above 0",
        ),
        ("[plan]", "[plan]\nmicro = 1", "The tables and keys of a study, each explained: coplace init FILE.toml"),
    ] {
        assert!(RELATIVES.contains(of), "{of}");
        std::fs::write(dir.path().join("s.toml"), RELATIVES.replace(of, by)).unwrap();
        let message = run_coplace_in(dir.path(), &["search", "opt-350m", "--study", "s.toml"]).expect_refusal();
        assert!(message.contains(why), "{by}: {message}");
    }
    let by_node =
        "\"area.node\" = [\"n7\"]\n\"vector.lanes\" = { by = \"area.node\", values = { n7 = 1024, n5 = 2048 } }";
    let node = refused(by_node, &["--node", "n28"]);
    assert!(node.contains("--node n28: study s.toml has vector.lanes for n5, n7 only; use one of these"), "{node}");
    let phaze = |flags: &[&str]| {
        run_coplace_in(dir.path(), &[&["search", "opt-350m", "--study", "smoke"][..], flags].concat()).expect_refusal()
    };
    assert!(phaze(&["--node", "n5"]).contains(
        "--node n5: study smoke has PHAZE's chips with a fixed node of 22 nm and one HBM; use a study with a base chip"
    ));
    assert!(
        phaze(&["--objective", "per-dollar"])
            .contains("cost matters here, but capacities that change no area are searched as one")
    );
    // A model may be given twice by the same name, by its name in other case, or by two paths to its file.
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/config.json"), config_with("tie_word_embeddings", Some(true.into()))).unwrap();
    for [first, second] in [["opt-350m", "opt-350m"], ["opt-350m", "OPT-350M"], ["mine", "./mine/config.json"]] {
        let twice = run_coplace_in(dir.path(), &["search", first, second, "--study", "smoke"]).expect_refusal();
        assert!(
            twice.contains(&format!("MODEL {second}: is given already ({first}); give each model once")),
            "{twice}"
        );
    }
    assert!(!dir.path().join("runs").exists());
}
