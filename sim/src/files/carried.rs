//! Text files that a request carries with it.

use super::text;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Result;
use std::path::Path;

/// Texts by the paths that name them. A file that is not carried is read from the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Files(BTreeMap<String, String>);

impl Files {
    /// Returns the text of a file in UTF-8, without its byte order mark: the carried text if there is one, else the
    /// text on the disk.
    ///
    /// # Errors
    /// Those of [`text::read_text`].
    pub fn read(&self, path: &Path) -> Result<String> {
        self.text(path).map_or_else(|| text::read_text(path), |text| Ok(text.to_owned()))
    }

    /// Returns the text that is carried under a path; `None` if there is none.
    #[must_use]
    pub fn text(&self, path: &Path) -> Option<&str> {
        self.0.get(&path.display().to_string()).map(String::as_str)
    }

    /// True if a text is carried under a path, or if the path exists on the disk.
    #[must_use]
    pub fn exists(&self, path: &Path) -> bool {
        self.text(path).is_some() || path.exists()
    }

    /// Reads a file now and carries its text, unless a text is carried already. A file that cannot be read is skipped;
    /// [`Self::read`] reports the error.
    pub fn carry(&mut self, path: &Path) {
        if self.text(path).is_none()
            && let Ok(text) = text::read_text(path)
        {
            self.insert(path, text);
        }
    }

    /// Carries a text under a path.
    pub fn insert(&mut self, path: &Path, text: String) {
        self.0.insert(path.display().to_string(), text);
    }

    /// Removes the text that is carried under a path, if any.
    pub fn remove(&mut self, path: &Path) {
        self.0.remove(&path.display().to_string());
    }

    /// The paths and texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// True if nothing is carried.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_carried_text_is_read_in_a_file_s_place_and_in_no_other() {
        let path = Path::new("nowhere/carried.toml");
        let mut files = Files::default();
        assert!(files.read(path).is_err() && !files.exists(path));
        files.insert(path, "x = 1".to_owned());
        assert_eq!(files.read(path).unwrap(), "x = 1");
        assert!(files.read(Path::new("carried.toml")).is_err());
        assert!(Files::default().read(path).is_err());
    }
}
