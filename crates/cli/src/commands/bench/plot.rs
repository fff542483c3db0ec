//! Throughput by batch size, as an SVG chart.

use std::fmt::Write;

/// Number of sequences and throughput in tok/s.
pub type Point = (u32, f64);

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;

/// Draws the chart. Both axes are logarithmic, so that linear scaling is a straight line.
pub fn svg(title: &str, points: &[Point]) -> String {
    let mut points = points.to_vec();
    points.sort_by_key(|(batch, _)| *batch);
    let max_batch = points.iter().map(|(batch, _)| *batch).max().unwrap_or(1).max(2);
    let speeds = points.iter().map(|(_, speed)| *speed);
    let (low, high) =
        speeds.fold((f64::MAX, f64::MIN), |(low, high), speed| (low.min(speed), high.max(speed)));
    let (low, high) = (decade_step_below(low), decade_step_above(high));
    // With a single point they can be equal.
    let high = if high > low { high } else { low * 2.0 };
    let x =
        |batch: u32| LEFT + f64::from(batch).log2() / f64::from(max_batch).log2() * (WIDTH - LEFT - RIGHT);
    let y = |speed: f64| HEIGHT - BOTTOM - (speed / low).ln() / (high / low).ln() * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    let mut add = |line: String| svg.push_str(&line);
    for speed in steps(low, high) {
        let at = y(speed);
        add(format!(
            "<path d=\"M{LEFT} {at:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            speed as u64
        ));
    }
    for power in 0..=max_batch.ilog2() {
        let at = x(1 << power);
        add(format!(
            "<path d=\"M{at:.1} {TOP}V{}\" stroke=\"#eee\"/><text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            1 << power
        ));
    }
    add(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">concurrent sequences</text>\n\
         <text x=\"{LEFT}\" y=\"{}\" text-anchor=\"end\">tok/s</text>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        TOP - 10.0
    ));
    let mut path = String::new();
    for (index, (batch, speed)) in points.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        write!(path, "{letter}{:.1} {:.1}", x(*batch), y(*speed)).expect("writing to a String cannot fail");
    }
    add(format!("<path d=\"{path}\" fill=\"none\" stroke=\"#1565c0\" stroke-width=\"2\"/>\n"));
    for (batch, speed) in &points {
        let (x, y) = (x(*batch), y(*speed));
        add(format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#1565c0\"><title>{batch}: {speed:.1} tok/s</title></circle>\n"
        ));
    }
    svg + "</svg>\n"
}

/// Axis steps: 1, 2 and 5 times powers of ten within the range.
fn steps(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power)));
    all.filter(|step| (low * 0.999..=high * 1.001).contains(step)).collect()
}

fn decade_step_below(value: f64) -> f64 {
    steps(value / 10.0, value).pop().unwrap_or(value)
}

fn decade_step_above(value: f64) -> f64 {
    steps(value, value * 10.0).first().copied().unwrap_or(value)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_within_the_chart() {
        let points = [(1, 115.9), (2, 164.0), (4, 399.0), (16, 1300.0), (100, 4000.5), (128, 4500.0)];
        let svg = svg("27B <int8> & more", &points);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("27B &lt;int8&gt; &amp; more"));
        let circles: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|line| {
                let number = |name: &str| {
                    line.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse()
                };
                (number("cx").unwrap(), number("cy").unwrap())
            })
            .collect();
        assert_eq!(circles.len(), points.len());
        assert!(
            circles.iter().all(|(x, y)| (0.0..=WIDTH).contains(x) && (0.0..=HEIGHT).contains(y)),
            "{circles:?}"
        );
        // Larger values are further up and to the right.
        assert!(circles.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1));
    }

    #[test]
    fn axis_steps_are_round_numbers() {
        assert_eq!(steps(50.0, 1000.0), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!((decade_step_below(115.9), decade_step_above(4501.0)), (100.0, 5000.0));
    }
}
