#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use sim::units::{Bytes, Seconds};

/// Builds layers by name.
#[derive(Default)]
struct Builder(LayerTensors);

impl Builder {
    fn tensor(&mut self, name: &str, bytes: u64, needed: bool, source: TensorSource) -> TensorIndex {
        self.0.tensors.push(SavedTensor { name: name.into(), bytes: Bytes(bytes), source, needed_by_backward: needed });
        TensorIndex(self.0.tensors.len() - 1)
    }
    fn input(&mut self, name: &str, bytes: u64, needed: bool) -> TensorIndex {
        self.tensor(name, bytes, needed, TensorSource::LayerInput)
    }
    fn op(
        &mut self,
        name: &str,
        seconds: f64,
        inputs: &[TensorIndex],
        outputs: &[(&str, u64, bool)],
    ) -> Vec<TensorIndex> {
        let here = TensorSource::Operator(OperatorIndex(self.0.operators.len()));
        let made: Vec<_> = outputs.iter().map(|&(n, bytes, needed)| self.tensor(n, bytes, needed, here)).collect();
        self.0.operators.push(LayerOperator {
            name: name.into(),
            forward: Seconds(seconds),
            inputs: inputs.to_vec(),
            outputs: made.clone(),
            recomputable: true,
        });
        made
    }
}

/// A Llama layer with fused kernels, n tokens, hidden h, FFN f*h/4, grouped keys and values at a quarter of the heads.
fn llama_layer(n: u64, h: u64, heads: u64) -> LayerTensors {
    let mut b = Builder::default();
    let act = 2 * n * h;
    let gemm = |k: u64, m: u64| 2.0 * (n * k * m) as f64 / 180e12;
    let pass = |bytes: u64| bytes as f64 / 1.2e12;
    let ffn = 11 * h / 4;
    let x = b.input("x", act, true);
    let h1 = b.op("norm1", pass(2 * act), &[x], &[("h1", act, true), ("rstd1", 4 * n, true)])[0];
    let q = b.op("q_proj", gemm(h, h), &[h1], &[("q", act, false)])[0];
    let k = b.op("k_proj", gemm(h, h / 4), &[h1], &[("k", act / 4, false)])[0];
    let v = b.op("v_proj", gemm(h, h / 4), &[h1], &[("v", act / 4, true)])[0];
    let qr = b.op("rope_q", pass(2 * act), &[q], &[("q_rotated", act, true)])[0];
    let kr = b.op("rope_k", pass(act / 2), &[k], &[("k_rotated", act / 4, true)])[0];
    let o = b.op("flash", 2.3 * gemm(h, 4096), &[qr, kr, v], &[("o", act, true), ("lse", 4 * heads * n, true)])[0];
    let proj = b.op("o_proj", gemm(h, h), &[o], &[("attention", act, false)])[0];
    let x1 = b.op("add1", pass(3 * act), &[x, proj], &[("x1", act, true)])[0];
    let h2 = b.op("norm2", pass(2 * act), &[x1], &[("h2", act, true), ("rstd2", 4 * n, true)])[0];
    let gate = b.op("gate", gemm(h, ffn), &[h2], &[("gate", 2 * n * ffn, true)])[0];
    let up = b.op("up", gemm(h, ffn), &[h2], &[("up", 2 * n * ffn, true)])[0];
    let product = b.op("swiglu", pass(6 * n * ffn), &[gate, up], &[("product", 2 * n * ffn, true)])[0];
    let down = b.op("down", gemm(ffn, h), &[product], &[("mlp", act, false)])[0];
    b.op("add2", pass(3 * act), &[x1, down], &[("y", act, false)]);
    b.0
}

/// An eager GPT layer with softmax, masks and dropouts, as in Korthikanti et al.: s*b*h*(34 + 5*a*s/h) bytes.
fn gpt_layer(s: u64, h: u64, heads: u64) -> LayerTensors {
    let mut b = Builder::default();
    let (act, map) = (2 * s * h, 2 * s * s * heads);
    let gemm = |k: u64, m: u64| 2.0 * (s * k * m) as f64 / 180e12;
    let pass = |bytes: u64| bytes as f64 / 1.2e12;
    let x = b.input("x", act, true);
    let h1 = b.op("norm1", pass(2 * act), &[x], &[("h1", act, true)])[0];
    let q = b.op("query", gemm(h, h), &[h1], &[("q", act, true)])[0];
    let k = b.op("key", gemm(h, h), &[h1], &[("k", act, true)])[0];
    let v = b.op("value", gemm(h, h), &[h1], &[("v", act, true)])[0];
    let scores = b.op("scores", gemm(h, s), &[q, k], &[("scores", map, false)])[0];
    let probs = b.op("softmax", pass(2 * map), &[scores], &[("probs", map, true)])[0];
    let mask = b.input("attention mask", map / 2, true);
    let dropped = b.op("softmax_dropout", pass(5 * map / 2), &[probs, mask], &[("dropped", map, true)])[0];
    let context = b.op("context", gemm(s, h), &[dropped, v], &[("context", act, true)])[0];
    let proj = b.op("proj", gemm(h, h), &[context], &[("projected", act, false)])[0];
    let mask1 = b.input("mask1", act / 2, true);
    let drop1 = b.op("dropout1", pass(5 * act / 2), &[proj, mask1], &[("drop1", act, false)])[0];
    let x1 = b.op("add1", pass(3 * act), &[x, drop1], &[("x1", act, true)])[0];
    let h2 = b.op("norm2", pass(2 * act), &[x1], &[("h2", act, true)])[0];
    let fc1 = b.op("fc1", gemm(h, 4 * h), &[h2], &[("fc1", 4 * act, true)])[0];
    let gelu = b.op("gelu", pass(8 * act), &[fc1], &[("gelu", 4 * act, true)])[0];
    let fc2 = b.op("fc2", gemm(4 * h, h), &[gelu], &[("fc2", act, false)])[0];
    let mask2 = b.input("mask2", act / 2, true);
    let drop2 = b.op("dropout2", pass(5 * act / 2), &[fc2, mask2], &[("drop2", act, false)])[0];
    b.op("add2", pass(3 * act), &[x1, drop2], &[("y", act, false)]);
    b.0
}

/// A random layer from a stream of numbers. Sizes and times are small integers, so that ties occur.
pub(super) fn random_layer(numbers: &[u32], operators: usize) -> LayerTensors {
    let mut stream = numbers.iter().copied().cycle();
    let mut next = |below: u32| stream.next().map_or(0, |n| n % below.max(1));
    let mut b = Builder::default();
    let mut made = vec![b.input("x", u64::from(next(9)), next(2) == 0)];
    for o in 0..operators {
        let mut inputs: Vec<TensorIndex> = Vec::new();
        for _ in 0..=next(3) {
            // Mostly recent tensors, so that chains are long.
            let reach = if next(3) == 0 { made.len() } else { made.len().min(3) };
            let back = next(reach as u32) as usize;
            inputs.push(made[made.len() - 1 - back]);
        }
        let outputs: Vec<(&str, u64, bool)> = (0..=next(2)).map(|_| ("t", u64::from(next(12)), next(5) < 3)).collect();
        made.extend(b.op("op", f64::from(next(7)), &inputs, &outputs));
        b.0.operators[o].recomputable = next(8) != 0;
    }
    b.0
}

/// Tries every set of recomputable operators, and keeps the Pareto-optimal policies by definition.
fn brute_force(layer: &LayerTensors) -> Vec<(u64, f64, u64)> {
    let allowed: Vec<usize> = (0..layer.operators.len()).filter(|&o| layer.operators[o].recomputable).collect();
    let mut all: Vec<(u64, f64, u64)> = (0..1_u32 << allowed.len())
        .map(|mask| {
            let chosen = allowed.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1);
            let policy = layer.policy_of_rerun(chosen.fold(OperatorSet::EMPTY, |set, (_, &o)| set.with_operator(o)));
            (policy.stash.0, policy.extra.0, policy.workspace.0)
        })
        .collect();
    all.sort_by(|a, b| a.partial_cmp(b).unwrap());
    let better =
        |a: &(u64, f64, u64), b: &(u64, f64, u64)| a.0 <= b.0 && a.1 <= b.1 && (a.0 < b.0 || a.1 < b.1 || a.2 < b.2);
    let mut front: Vec<_> = all.iter().filter(|b| !all.iter().any(|a| better(a, b))).copied().collect();
    front.dedup();
    front.reverse();
    front
}

fn numbers(front: &[RecomputePolicy]) -> Vec<(u64, f64, u64)> {
    front.iter().map(|p| (p.stash.0, p.extra.0, p.workspace.0)).collect()
}

fn assert_sound(layer: &LayerTensors, front: &[RecomputePolicy]) {
    for policy in front {
        assert_eq!(verify_policy(layer, policy, &layer.tensor_choices(policy.operators)), vec![]);
    }
    for pair in front.windows(2) {
        assert!(pair[0].stash > pair[1].stash && pair[0].extra.0 < pair[1].extra.0, "{pair:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_front_is_what_trying_every_set_finds(seed in prop::collection::vec(any::<u32>(), 40..120), operators in 1_usize..11) {
        let space = RecomputeSpace::new(random_layer(&seed, operators)).unwrap();
        let layer = space.layer();
        let front = space.front_for_own_times().unwrap();
        assert_sound(layer, &front);
        prop_assert_eq!(numbers(&front), brute_force(layer));
        let seconds: Vec<f64> = layer.operators.iter().map(|o| o.forward.0).collect();
        prop_assert_eq!(numbers(&space.solve_by_labels(&seconds)), brute_force(layer));
    }

    #[test]
    fn candidates_serve_other_times_too(
        seed in prop::collection::vec(any::<u32>(), 40..120),
        times in prop::collection::vec(0_u32..9, 9),
    ) {
        let space = RecomputeSpace::new(random_layer(&seed, 9)).unwrap();
        let times: Vec<Seconds> = times.into_iter().map(|us| Seconds(f64::from(us))).collect();
        let mut layer = space.layer().clone();
        for (operator, time) in layer.operators.iter_mut().zip(&times) {
            operator.forward = *time;
        }
        prop_assert_eq!(numbers(&space.front(&times).unwrap()), brute_force(&layer));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_integer_program_finds_the_same_front(seed in prop::collection::vec(any::<u32>(), 40..120), operators in 1_usize..8) {
        let space = RecomputeSpace::new(random_layer(&seed, operators)).unwrap();
        let pairs = |front: Vec<RecomputePolicy>| numbers(&front).into_iter().map(|(s, e, _)| (s, e)).collect::<Vec<_>>();
        let ilp = pareto_by_ilp(space.layer()).unwrap();
        assert_sound(space.layer(), &ilp);
        prop_assert_eq!(pairs(ilp), pairs(space.front_for_own_times().unwrap()));
    }
}

fn check_real_layer(layer: LayerTensors, keep_all: u64) {
    let space = RecomputeSpace::new(layer).unwrap();
    let front = space.front_for_own_times().unwrap();
    assert_sound(space.layer(), &front);
    assert_eq!(front[0].stash, Bytes(keep_all));
    assert_eq!(front[0].extra, Seconds(0.0));
    // Rerunning everything the backward pass needs leaves only the layer's inputs.
    let inputs = space.layer().tensors.iter().filter(|t| t.source == TensorSource::LayerInput);
    assert_eq!(front.last().unwrap().stash, inputs.map(|t| t.bytes).sum());
    let seconds: Vec<f64> = space.layer().operators.iter().map(|o| o.forward.0).collect();
    let solved = space.solve_by_labels(&seconds);
    let ilp = pareto_by_ilp(space.layer()).unwrap();
    for other in [solved, ilp] {
        assert_eq!(other.len(), front.len());
        for (a, b) in other.iter().zip(&front) {
            assert_eq!(a.stash, b.stash);
            assert!((a.extra.0 - b.extra.0).abs() <= 1e-9 * b.extra.0, "{a:?} {b:?}");
        }
    }
}

#[test]
fn a_llama_layer_has_one_front_whoever_computes_it() {
    let (n, h, heads) = (4096, 4096, 32);
    // sbh(12 + 4g + 6f) + 4asb + 8sb with g = 1/4, f = 11/4.
    let keep_all = n * h * (24 + 2 + 33) / 2 + 4 * heads * n + 8 * n;
    check_real_layer(llama_layer(n, h, heads), keep_all);
}

#[test]
fn a_gpt_layer_has_one_front_whoever_computes_it() {
    let (s, h, heads) = (2048, 1600, 25);
    check_real_layer(gpt_layer(s, h, heads), s * h * 34 + 5 * heads * s * s);
}

#[test]
fn attention_of_a_gpt_layer_is_the_cheap_part_to_rerun() {
    // Megatron's selective recomputation reruns scores, softmax and dropout. It saves 5*a*s^2 bytes, less the mask, for
    // 2.7 % of the time.
    let (s, h, heads) = (2048, 12288, 96);
    let space = RecomputeSpace::new(gpt_layer(s, h, heads)).unwrap();
    let front = space.front_for_own_times().unwrap();
    let selective = space.layer().operators.iter().enumerate();
    let selective = selective.filter(|(_, o)| ["scores", "softmax", "softmax_dropout"].contains(&o.name.as_str()));
    let selective =
        space.layer().policy_of_rerun(selective.fold(OperatorSet::EMPTY, |set, (o, _)| set.with_operator(o)));
    assert_eq!(selective.stash, Bytes(s * h * 34 + heads * s * s));
    let at_least_as_small = front.iter().find(|p| p.stash <= selective.stash).unwrap();
    assert!(at_least_as_small.extra.0 <= selective.extra.0 * (1.0 + 1e-12));
}

#[test]
fn a_layer_that_makes_no_sense_is_refused() {
    let mut layer = llama_layer(16, 16, 2);
    layer.operators.swap(0, 1);
    let text = RecomputeSpace::new(layer).unwrap_err().to_string();
    assert!(text.contains("list operators in execution order"), "{text}");
    let mut layer = llama_layer(16, 16, 2);
    layer.operators[3].forward = Seconds(f64::NAN);
    assert!(matches!(RecomputeSpace::new(layer), Err(LayerError::Time { .. })));
    let mut layer = llama_layer(16, 16, 2);
    layer.operators[3].outputs.clear();
    assert!(matches!(RecomputeSpace::new(layer), Err(LayerError::Source { found: 0, .. })));
    let space = RecomputeSpace::new(llama_layer(16, 16, 2)).unwrap();
    assert!(matches!(space.front(&[Seconds(1.0)]), Err(LayerError::TimeCount { given: 1, operators: 15 })));
}

#[test]
fn the_verifier_finds_each_fault() {
    let layer = llama_layer(64, 16, 2);
    let sound = layer.policy_of_rerun(OperatorSet::EMPTY.with_operator(0));
    let choices = layer.tensor_choices(sound.operators);
    assert_eq!(verify_policy(&layer, &sound, &choices), vec![]);
    let wrong = RecomputePolicy { stash: Bytes(1), operators: OperatorSet::EMPTY.with_operator(99), ..sound };
    let faults = verify_policy(&layer, &wrong, &choices);
    assert!(faults.iter().any(|f| matches!(f, PolicyFault::NotRecomputable { operator: 99 })));
    assert!(faults.iter().any(|f| matches!(f, PolicyFault::MissingForBackward { tensor } if tensor == "h1")));
    assert!(faults.iter().any(|f| matches!(f, PolicyFault::Number { what: "stash", .. })));
    let mut nothing_kept = choices;
    nothing_kept[0] = TensorChoice::Drop;
    let faults = verify_policy(&layer, &sound, &nothing_kept);
    assert!(faults.iter().any(|f| matches!(f, PolicyFault::MissingInput { operator: 0, .. })));
}

#[test]
fn candidate_lists_stay_short() {
    // There are 2^15 and 2^16 sets of operators.
    let count = |layer| RecomputeSpace::new(layer).unwrap().candidate_count();
    assert_eq!(count(llama_layer(4096, 4096, 32)), Some(1024));
    assert_eq!(count(gpt_layer(2048, 12288, 96)), Some(2048));
}
