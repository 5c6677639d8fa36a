//! The software stack that usually runs on a chip.

use crate::SoftwareStack;
use crate::stack::software::StackError;
use sim::hardware::Accelerator;

impl SoftwareStack {
    /// Loads the built-in stack that the chip's file names as usual. `file` names the chip's file in errors.
    ///
    /// # Errors
    /// A chip without `usual_stack`, or one that names no built-in stack.
    pub fn load_usual_of_chip(chip: &Accelerator, file: &str) -> Result<Self, StackError> {
        let Some(usual) = chip.origin.usual_stack.as_deref() else {
            return Err(StackError::NoUsualStack { chip: chip.name.clone(), file: file.to_owned() });
        };
        let known = Self::built_in_names();
        if !known.iter().any(|name| sim::names::are_same_name(name, usual)) {
            return Err(StackError::Value {
                file: file.to_owned(),
                key: "usual_stack".to_owned(),
                value: usual.to_owned(),
                limit: format!("is no built-in stack; {}", sim::names::hint(usual, &known.join(", "), "built in are")),
                cure: "name one of them, or leave the key out and give --stack",
            });
        }
        Self::load(usual)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::hardware::{ChipOrigin, templates};

    #[test]
    fn every_built_in_chip_names_a_built_in_stack() {
        for template in templates().unwrap() {
            SoftwareStack::load_usual_of_chip(&template.accelerator, &template.name).unwrap();
        }
    }

    #[test]
    fn a_chip_without_a_usual_stack_or_with_an_unknown_one_is_refused_with_the_cure() {
        let chip = Accelerator::built_in("h100").unwrap();
        let with = |usual_stack: Option<&str>| {
            let origin = ChipOrigin { usual_stack: usual_stack.map(str::to_owned), ..chip.origin.clone() };
            let chip = Accelerator { origin, ..chip.clone() };
            SoftwareStack::load_usual_of_chip(&chip, "acme.toml").unwrap_err().to_string()
        };
        let none = with(None);
        assert!(none.starts_with("--stack is missing: "), "{none}");
        assert!(none.contains("usual_stack = \"NAME\" to acme.toml"), "{none}");
        let unknown = with(Some("megatorn"));
        assert!(unknown.starts_with("acme.toml: usual_stack = megatorn: is no built-in stack; "), "{unknown}");
        assert!(unknown.contains("did you mean `megatron`?") && unknown.contains("give --stack"), "{unknown}");
    }
}
