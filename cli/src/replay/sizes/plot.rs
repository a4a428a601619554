//! The hit ratios as a drawing: size across, on a logarithmic scale, hit ratio up, one line for each policy.

use std::fmt::Write as _;

use super::known::{Known, Row};
use super::{Point, Policy};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
/// Margins: left, right (the legend stands there), top, bottom.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 58.0;
/// Colours that people who see colours differently can tell apart (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];
const KNOWN_COLOUR: &str = "#777777";
/// Dashes of the known figures.
const DASHES: [&str; 3] = ["2 3", "7 4", "1 5"];

struct Line {
    name: String,
    colour: &'static str,
    /// Empty for a solid line with dots.
    dashes: &'static str,
    /// Share of the unique blocks in percent, hit ratio.
    points: Vec<(f64, f64)>,
}

fn lines(policies: &[Policy], points: &[Point], known: Option<&Known>) -> Vec<Line> {
    let percent = |size: &str| size.trim_end_matches('%').parse::<f64>().unwrap_or(0.0);
    let mut lines = Vec::new();
    for (policy, colour) in policies.iter().zip(COLOURS.iter().cycle()) {
        let name = policy.to_string();
        let own = points.iter().filter(|point| point.policy == name);
        let mut own: Vec<(f64, f64)> = own.map(|point| (percent(&point.size), point.hit_ratio)).collect();
        own.sort_by(|a, b| a.0.total_cmp(&b.0));
        lines.push(Line { name, colour, dashes: "", points: own });
    }
    let largest = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    let smallest = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(largest, f64::min);
    if let Some(known) = known {
        let all = ["Belady (known)", "LRU_t (known)", "S3FIFO_t (known)"].into_iter().zip(DASHES).enumerate();
        for (at, (name, dashes)) in all {
            let figures = |row: &Row| [row.belady, row.lru, row.s3_fifo][at];
            let within = known.rows.iter().map(|row| (f64::from(row.percent), figures(row)));
            let points = within.filter(|point| (smallest..=largest).contains(&point.0)).collect();
            lines.push(Line { name: name.to_owned(), colour: KNOWN_COLOUR, dashes, points });
        }
    }
    lines
}

/// Where a point of the plot lies on the drawing.
struct Scale {
    least: f64,
    most: f64,
    top: f64,
}

impl Scale {
    fn of(lines: &[Line]) -> Self {
        let points = || lines.iter().flat_map(|line| &line.points);
        let most = points().map(|point| point.0).fold(0.0_f64, f64::max).max(0.02);
        let least = points().map(|point| point.0).fold(most, f64::min).max(0.01);
        let top = points().map(|point| point.1).fold(0.1_f64, f64::max);
        Self { least: if least < most { least } else { most / 2.0 }, most, top: (top * 10.0).ceil() / 10.0 }
    }

    fn x(&self, percent: f64) -> f64 {
        let part = (percent.max(self.least) / self.least).ln() / (self.most / self.least).ln();
        LEFT + part * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ratio: f64) -> f64 {
        HEIGHT - BOTTOM - ratio / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

/// The drawing, as a file of its own.
pub(crate) fn svg(name: &str, policies: &[Policy], points: &[Point], known: Option<&Known>) -> String {
    let lines = lines(policies, points, known);
    let scale = Scale::of(&lines);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"26\" font-size=\"15\">Block hit ratio by tier size: {}</text>",
        escaped(name)
    );
    axes(&mut out, &scale);
    for line in &lines {
        curve(&mut out, &scale, line);
    }
    legend(&mut out, &lines);
    out.push_str("</svg>\n");
    out
}

fn axes(out: &mut String, scale: &Scale) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let steps = (scale.top * 10.0).round() as u32;
    for step in 0..=steps {
        let ratio = f64::from(step) / 10.0;
        let y = scale.y(ratio);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
        let _ =
            writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.1}</text>", LEFT - 8.0, y + 4.0);
    }
    for percent in [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0] {
        if percent < scale.least || percent > scale.most {
            continue;
        }
        let x = scale.x(percent);
        let _ = writeln!(out, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#eee\"/>");
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent}%</text>", bottom + 18.0);
    }
    let _ = writeln!(
        out,
        "<polyline points=\"{LEFT},{TOP} {LEFT},{bottom} {right},{bottom}\" fill=\"none\" stroke=\"#222\"/>"
    );
    let middle = f64::midpoint(LEFT, right);
    let _ = writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">size of the tier, share of the trace's unique \
         blocks (logarithmic)</text>",
        bottom + 40.0
    );
    let upright = f64::midpoint(TOP, bottom);
    let _ = writeln!(
        out,
        "<text x=\"18\" y=\"{upright:.1}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {upright:.1})\">hit blocks \
         / all blocks</text>"
    );
}

fn curve(out: &mut String, scale: &Scale, line: &Line) {
    let at: Vec<(f64, f64)> = line.points.iter().map(|point| (scale.x(point.0), scale.y(point.1))).collect();
    let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (width, dashes) = if line.dashes.is_empty() { (2.2, "none") } else { (1.6, line.dashes) };
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\"/>",
        path.join(" "),
        line.colour
    );
    if line.dashes.is_empty() {
        for (x, y) in at {
            let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.2\" fill=\"{}\"/>", line.colour);
        }
    }
}

fn legend(out: &mut String, lines: &[Line]) {
    let x = WIDTH - RIGHT + 18.0;
    for (at, line) in lines.iter().enumerate() {
        let y = TOP + 14.0 + 22.0 * at as f64;
        let dashes = if line.dashes.is_empty() { "none" } else { line.dashes };
        let _ = writeln!(
            out,
            "<line x1=\"{x}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"2.2\" \
             stroke-dasharray=\"{dashes}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 28.0,
            line.colour,
            x + 36.0,
            y + 4.0,
            escaped(&line.name)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
