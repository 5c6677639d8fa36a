//! The parts of an error, kept beside its message so that programs need not parse the message.

/// The parts of an error. A part that the error does not have is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FaultParts {
    /// The file at fault.
    pub file: Option<String>,
    /// The key or option at fault; for an unknown name the kind of thing: `chip`, `model`.
    pub key: Option<String>,
    /// Its value.
    pub value: Option<String>,
    /// The rule that the value breaks.
    pub limit: Option<String>,
    /// The cure.
    pub cure: Option<String>,
}

impl FaultParts {
    /// Returns the parts of a fault of a value under a key. An empty text becomes `None`.
    #[must_use]
    pub fn of_key(
        key: impl Into<String>,
        value: impl Into<String>,
        limit: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        let part = |text: String| Some(text).filter(|text| !text.is_empty());
        let (key, value) = (part(key.into()), part(value.into()));
        Self { file: None, key, value, limit: part(limit.into()), cure: part(cure.into()) }
    }

    /// Returns the parts of a fault of a whole file, which cannot be read or is of another kind.
    #[must_use]
    pub fn of_file(file: impl Into<String>, limit: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::of_key("", "", limit, cure).in_file(file)
    }

    /// Returns these parts with a file.
    #[must_use]
    pub fn in_file(self, file: impl Into<String>) -> Self {
        Self { file: Some(file.into()), ..self }
    }
}

/// An error that can be taken apart.
pub trait StructuredError: std::error::Error + 'static {
    /// The parts of the first fault.
    fn fault_parts(&self) -> FaultParts;
}
