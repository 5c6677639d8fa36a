//! Prices built chips beside the best chip of a space: the same requests within the same service level on the same
//! number of devices.

use super::loaded::{LoadedDeployment, deploy};
use crate::input;
use rayon::prelude::*;
use results::answer::serving::{ServedBaseline, describe_refusal};
use search::serve::figures_of_built_chip;
use search::space::{ChipLimits, EfficiencyChoice};
use serving::best::{ServingHardware, ServingQuestion};
use serving::nearest::nearest_refusal;
use serving::plan::{ServedProduct, ServingFormats};
use sim::hardware::Accelerator;
use sim::network::Fabric;

/// Built chips that are compared with every space's answer.
const BUILT: [&str; 7] = ["h100_80gb_sxm", "h200", "b200", "tpu_v5e", "tpu_v6e", "tpu_v7", "mi300x"];

/// Returns the baselines of a space's answer, in the order of their names here.
pub fn price_baselines(
    loaded: &LoadedDeployment<'_>,
    question: &ServingQuestion<'_>,
    efficiency: EfficiencyChoice,
) -> Vec<ServedBaseline> {
    let built = |name: &&str| Accelerator::built_in(name).ok();
    let chips: Vec<Accelerator> = BUILT.iter().filter_map(built).collect();
    chips.par_iter().with_max_len(1).map(|chip| price_baseline(loaded, chip, question, efficiency)).collect()
}

fn price_baseline(
    loaded: &LoadedDeployment<'_>,
    chip: &Accelerator,
    question: &ServingQuestion<'_>,
    efficiency: EfficiencyChoice,
) -> ServedBaseline {
    let (formats, refused) = nearest_formats(chip, &question.formats);
    let mut baseline = ServedBaseline {
        chip: chip.name.clone(),
        fabric: chip.origin.usual_fabric.clone(),
        products: formats.products.to_string(),
        experts: formats.experts.to_string(),
        fitted: None,
        same_form: None,
        note: refused,
    };
    let fabric = match fabric_of_chip(loaded, chip) {
        Ok(fabric) => fabric,
        Err(why) => return ServedBaseline { note: Some(why), ..baseline },
    };
    // The space's limit on power is for chips that are still to be built. A built chip has a limit of its own.
    let question = ServingQuestion { formats, power_limit: None, ..question.clone() };
    let engine = &loaded.engine;
    let value = |chip: &Accelerator| price_form(loaded, &question, ServingHardware { chip, fabric: &fabric, engine });
    match value(chip) {
        Ok(value) => baseline.fitted = Some(value),
        Err(why) => baseline.note = Some(baseline.note.map_or_else(|| why.clone(), |note| format!("{note}; {why}"))),
    }
    baseline.same_form = value(&ChipLimits::default().chip_with_efficiency(chip, efficiency)).ok();
    baseline
}

/// Returns the best value of a chip's deployments, or the reason why it has none.
fn price_form(
    loaded: &LoadedDeployment<'_>,
    question: &ServingQuestion<'_>,
    hardware: ServingHardware<'_>,
) -> Result<f64, String> {
    let figures = figures_of_built_chip(hardware.chip);
    let answers = deploy(question, loaded.question().pools, &[hardware]);
    let deployments: Vec<_> = answers.iter().flat_map(|answer| &answer.deployments).collect();
    let values = deployments.iter().filter_map(|of| loaded.objective.value(of, |_| figures));
    values.reduce(f64::max).ok_or_else(|| {
        let nearest = nearest_refusal(&answers, &question.level);
        match nearest {
            _ if !deployments.is_empty() => "its area or cost is not known".to_owned(),
            Some(refusal) => describe_refusal(refusal, &question.level),
            None => "no plan uses so few devices".to_owned(),
        }
    })
}

fn fabric_of_chip(loaded: &LoadedDeployment<'_>, chip: &Accelerator) -> Result<Fabric, String> {
    let name = chip.origin.usual_fabric.as_deref().ok_or("its file names no usual_fabric")?;
    let fabric = input::read_fabric(name, chip, None, &loaded.question().files).map_err(|why| why.message())?;
    fabric.for_devices(loaded.question().devices).map_err(|why| why.to_string())
}

/// Returns the question's formats, with each that the chip's arrays cannot multiply replaced by its stored form, and a
/// note on the first such format.
fn nearest_formats(chip: &Accelerator, formats: &ServingFormats) -> (ServingFormats, Option<String>) {
    let nearest =
        |format: ServedProduct| if chip.peak_flops(format.operand()).is_some() { format } else { format.stored() };
    let own = ServingFormats { products: nearest(formats.products), experts: nearest(formats.experts), ..*formats };
    let refused = [(formats.products, own.products), (formats.experts, own.experts)].into_iter().find(|(a, b)| a != b);
    (own, refused.map(|(wanted, taken)| format!("multiplies no {wanted}, takes {taken}")))
}
