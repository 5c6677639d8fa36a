//! Figures as SVG. The PNG is rendered from the SVG with the font in this directory, so that equal data give equal
//! bytes on every machine.

mod axes;
mod canvas;
mod freedoms;
mod labels;
mod legend;
mod memory;
mod pareto;
mod png;
mod predicted;
mod techniques;
mod tornado;
mod validation;

pub use freedoms::draw_freedoms;
pub use memory::draw_memory;
pub use pareto::{AxisScale, DesignPoint, NamedDesign, ParetoPlot, RunSeries, draw_pareto};
pub use predicted::{PredictedGroup, PredictedPlot, draw_predicted};
pub use techniques::draw_techniques;
pub use tornado::draw_tornado;
pub use validation::plots_of_report;

use crate::store::files::{self, Unwritable, WriteError};
use std::path::{Path, PathBuf};

/// An error of making or writing a figure.
#[derive(Debug, thiserror::Error)]
pub enum FigureError {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Drawing failed.
    #[error("the figure `{title}` cannot be drawn: {why}")]
    Draw {
        /// The figure's title.
        title: String,
        /// Message of the drawing library.
        why: String,
    },
    /// The SVG could not be rendered.
    #[error("the figure cannot be rendered to PNG: {why}")]
    Render {
        /// Message of the renderer.
        why: String,
    },
}

impl Unwritable for FigureError {
    fn write_error(&self) -> Option<&WriteError> {
        match self {
            Self::Write(error) => Some(error),
            Self::Draw { .. } | Self::Render { .. } => None,
        }
    }
}

/// A figure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    svg: String,
}

impl Figure {
    /// Returns the figure as SVG.
    #[must_use]
    pub fn svg(&self) -> &str {
        &self.svg
    }

    /// Renders the figure as PNG, with two pixels per SVG unit.
    ///
    /// # Errors
    /// Errors of the renderer.
    pub fn png(&self) -> Result<Vec<u8>, FigureError> {
        png::render_png(&self.svg)
    }

    /// Writes `STEM.svg` and `STEM.png` into `directory`, each atomically. Returns their paths.
    ///
    /// # Errors
    /// Errors of the renderer or of the system; a path that is a link.
    pub fn write_files(&self, directory: &Path, stem: &str) -> Result<[PathBuf; 2], FigureError> {
        let [svg, png] = [directory.join(format!("{stem}.svg")), directory.join(format!("{stem}.png"))];
        files::refuse_link(&svg)?;
        files::refuse_link(&png)?;
        files::write_files(&[(svg.clone(), self.svg.clone().into_bytes()), (png.clone(), self.png()?)])?;
        Ok([svg, png])
    }
}
