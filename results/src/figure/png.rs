//! Renders SVG to PNG, only with the fonts in this repository. Fonts of the machine are not used.

use super::FigureError;
use resvg::{tiny_skia, usvg};

/// Subsets of DejaVu Sans 2.37; the licence lies beside them.
const FONTS: [&[u8]; 2] = [include_bytes!("font/DejaVuSans.ttf"), include_bytes!("font/DejaVuSans-Bold.ttf")];

/// Pixels per SVG unit.
const SCALE: f32 = 2.0;

/// Renders an SVG text to PNG.
pub(super) fn render_png(svg: &str) -> Result<Vec<u8>, FigureError> {
    let failed = |why: String| FigureError::Render { why };
    let mut options = usvg::Options { font_family: "DejaVu Sans".into(), ..usvg::Options::default() };
    for font in FONTS {
        options.fontdb_mut().load_font_data(font.to_vec());
    }
    let tree = usvg::Tree::from_str(svg, &options).map_err(|e| failed(e.to_string()))?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| failed("it has no size".into()))?;
    let mut pixels =
        tiny_skia::Pixmap::new(size.width(), size.height()).ok_or_else(|| failed("it is too large".into()))?;
    resvg::render(&tree, tiny_skia::Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().map_err(|e| failed(e.to_string()))
}
