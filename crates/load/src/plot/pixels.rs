//! Figures as pixels, in PNG: a canvas for the charts' library that fills paths and the outlines of letters.
//! Knows nothing of what is drawn. Letters are those of DejaVu Sans, which is built in, so that a figure is
//! the same everywhere; its licence wants to be where its letters are: `dejavu-license.txt`.

use std::fmt;
use std::io::Write;

use plotters::prelude::IntoDrawingArea;
use plotters::style::FontTransform;
use plotters::style::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};
use sanderling_observe::plot::{Figure, PLOTTERS_FONT_FACTOR, UNITS_PER_PX};
use ttf_parser::{Face, OutlineBuilder};
use zeno::{Cap, Command, Fill, Join, Mask, PathBuilder, Stroke, Style};

/// Pixels per CSS pixel: sharp on a screen of high resolution, and when a page is printed.
const DENSITY: u32 = 2;
const PIXELS_PER_UNIT: f32 = DENSITY as f32 / UNITS_PER_PX as f32;
/// Where a browser puts the line that letters stand on, in parts of the font's size: for text below, around
/// and above a place.
const BELOW_EMS: f32 = 0.76;
const AROUND_EMS: f32 = 0.27;
/// The first bytes of a PNG.
pub(super) const SIGNATURE: [u8; 8] = [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n'];

/// Why a figure was not drawn.
#[derive(Debug, thiserror::Error)]
#[error("the figure was not drawn: {0}")]
pub struct PngError(String);

/// A figure as a file of PNG, on white.
pub fn png(figure: &Figure) -> Result<Vec<u8>, PngError> {
    let wrong = |error: &dyn fmt::Display| PngError(error.to_string());
    let (width, height) =
        (figure.width_px.max(1) as u32 * DENSITY, figure.height_px().max(1) as u32 * DENSITY);
    let face = Face::parse(dejavu::sans::regular(), 0).map_err(|error| wrong(&error))?;
    let mut rgb = vec![0xff; (width * height * 3) as usize];
    let canvas = Pixels { width, height, rgb: &mut rgb, face };
    figure.paint(&canvas.into_drawing_area()).map_err(|error| wrong(&error))?;
    encode(width, height, &rgb).map_err(|error| wrong(&error))
}

struct Pixels<'a> {
    width: u32,
    height: u32,
    rgb: &'a mut [u8],
    face: Face<'static>,
}

/// Nothing goes wrong on this canvas.
#[derive(Debug)]
struct Never;

impl fmt::Display for Never {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("never")
    }
}

impl std::error::Error for Never {}

type Drawn = Result<(), DrawingErrorKind<Never>>;

impl Pixels<'_> {
    /// Lays a colour over what a path covers.
    fn cover<'s>(&mut self, path: &[Command], style: impl Into<Style<'s>>, color: BackendColor) {
        let (mask, place) = Mask::new(path).style(style).render();
        let (r, g, b) = color.rgb;
        for row in 0..place.height {
            let y = place.top + row as i32;
            for column in 0..place.width {
                let x = place.left + column as i32;
                let covered = mask[(row * place.width + column) as usize];
                if covered == 0 || x < 0 || y < 0 || x >= self.width as i32 || y >= self.height as i32 {
                    continue;
                }
                let part = f64::from(covered) / 255.0 * color.alpha;
                let at = 3 * (y as usize * self.width as usize + x as usize);
                for (old, new) in self.rgb[at..at + 3].iter_mut().zip([r, g, b]) {
                    *old = (f64::from(*old) * (1.0 - part) + f64::from(new) * part).round() as u8;
                }
            }
        }
    }

    fn stroke<S: BackendStyle>(&mut self, path: &[Command], style: &S) {
        let width = (style.stroke_width() as f32 * PIXELS_PER_UNIT).max(1.0);
        let mut stroke = Stroke::new(width);
        stroke.join(Join::Round).cap(Cap::Butt);
        self.cover(path, stroke, style.color());
    }

    fn draw<S: BackendStyle>(&mut self, path: &[Command], style: &S, fill: bool) -> Drawn {
        if style.color().alpha > 0.0 {
            if fill {
                self.cover(path, Fill::NonZero, style.color());
            } else {
                self.stroke(path, style);
            }
        }
        Ok(())
    }
}

fn place((x, y): BackendCoord) -> (f32, f32) {
    (x as f32 * PIXELS_PER_UNIT, y as f32 * PIXELS_PER_UNIT)
}

fn lines(points: impl IntoIterator<Item = BackendCoord>, closed: bool) -> Vec<Command> {
    let mut path = Vec::new();
    for point in points {
        if path.is_empty() {
            path.move_to(place(point))
        } else {
            path.line_to(place(point))
        };
    }
    if closed && !path.is_empty() {
        path.close();
    }
    path
}

impl DrawingBackend for Pixels<'_> {
    type ErrorType = Never;

    fn get_size(&self) -> (u32, u32) {
        let units = UNITS_PER_PX as u32;
        (self.width / DENSITY * units, self.height / DENSITY * units)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        self.draw_rect((x, y), (x + 1, y + 1), &color, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw(&lines([from, to], false), style, false)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        a: BackendCoord,
        b: BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        self.draw(&lines([a, (b.0, a.1), b, (a.0, b.1)], true), style, fill)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Drawn {
        self.draw(&lines(path, false), style, false)
    }

    fn draw_circle<S: BackendStyle>(
        &mut self,
        center: BackendCoord,
        radius: u32,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let mut path = Vec::new();
        path.add_circle(place(center), radius as f32 * PIXELS_PER_UNIT);
        self.draw(&path, style, fill)
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        points: I,
        style: &S,
    ) -> Drawn {
        self.draw(&lines(points, true), style, true)
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, at: BackendCoord) -> Drawn {
        let size = style.size() as f32 / PLOTTERS_FONT_FACTOR as f32 * PIXELS_PER_UNIT;
        let scale = size / f32::from(self.face.units_per_em());
        let face = self.face.clone();
        // A letter that the font has not is drawn as its empty box.
        let glyphs: Vec<_> =
            text.chars().map(|letter| face.glyph_index(letter).unwrap_or_default()).collect();
        let advance = |glyph| f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
        let width: f32 = glyphs.iter().map(|&glyph| advance(glyph)).sum();
        let mut x = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => -width / 2.0,
            HPos::Right => -width,
        };
        let y = match style.anchor().v_pos {
            VPos::Top => BELOW_EMS * size,
            VPos::Center => AROUND_EMS * size,
            VPos::Bottom => -AROUND_EMS * size,
        };
        let turn = match style.transform() {
            FontTransform::None => (1.0, 0.0),
            FontTransform::Rotate90 => (0.0, 1.0),
            FontTransform::Rotate180 => (-1.0, 0.0),
            FontTransform::Rotate270 => (0.0, -1.0),
        };
        let mut outline = Outline { path: Vec::new(), origin: place(at), turn, offset: (x, y), scale };
        for glyph in glyphs {
            outline.offset = (x, y);
            face.outline_glyph(glyph, &mut outline);
            x += advance(glyph);
        }
        if !outline.path.is_empty() {
            self.cover(&outline.path, Fill::NonZero, style.color());
        }
        Ok(())
    }
}

/// Letters, scaled, moved along their line, and turned around the place of the text.
struct Outline {
    path: Vec<Command>,
    origin: (f32, f32),
    turn: (f32, f32),
    offset: (f32, f32),
    scale: f32,
}

impl Outline {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        // Fonts count upwards, pictures downwards.
        let (x, y) = (self.offset.0 + x * self.scale, self.offset.1 - y * self.scale);
        let (cos, sin) = self.turn;
        (self.origin.0 + cos * x - sin * y, self.origin.1 + sin * x + cos * y)
    }
}

impl OutlineBuilder for Outline {
    fn move_to(&mut self, x: f32, y: f32) {
        let to = self.at(x, y);
        self.path.move_to(to);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let to = self.at(x, y);
        self.path.line_to(to);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let (control, to) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(control, to);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let (first, second, to) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.curve_to(first, second, to);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

/// The format of the W3C (PNG, third edition): true colour, 8 bits, no filter, one chunk of data.
fn encode(width: u32, height: u32, rgb: &[u8]) -> std::io::Result<Vec<u8>> {
    let row_bytes = 3 * width as usize;
    let mut data = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    for row in rgb.chunks_exact(row_bytes) {
        data.write_all(&[0])?;
        data.write_all(row)?;
    }
    let mut header = Vec::new();
    header.extend(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut file = SIGNATURE.to_vec();
    // Pixels per metre, so that a page shows it in its CSS size: 96 per inch and density.
    let per_metre = (96 * DENSITY * 10_000 / 254).to_be_bytes();
    let density = [&per_metre[..], &per_metre[..], &[1]].concat();
    for (name, data) in
        [(b"IHDR", header), (b"pHYs", density), (b"IDAT", data.finish()?), (b"IEND", Vec::new())]
    {
        file.extend((data.len() as u32).to_be_bytes());
        let mut check = flate2::Crc::new();
        check.update(name);
        check.update(&data);
        file.extend(name);
        file.extend(data);
        file.extend(check.sum().to_be_bytes());
    }
    Ok(file)
}
