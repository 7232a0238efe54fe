//! Mixed-radix FFT in f64.

use std::f64::consts::PI;

/// A planned transform of one length (products of 2, 3, 4, 5 fast; any other factor correct).
pub struct Fft {
    len: usize,
    /// The complex transform: half the length when that is even, two real samples to a complex.
    complex: usize,
    stages: Vec<Stage>,
    /// `e^(-2 pi i k / len)` for `k <= len / 4`'s worth of the split, `[re, im]`.
    split: Vec<[f64; 2]>,
}

/// One radix of a Stockham transform: `m` groups of `radix`, `stride` transforms side by side.
struct Stage {
    radix: usize,
    m: usize,
    stride: usize,
    /// `w^(p j)` for `p < m`, `1 <= j < radix`, `w = e^(-2 pi i / (m radix))`.
    twiddles: Vec<[f64; 2]>,
    /// `e^(-2 pi i j / radix)`, for radices without their own butterfly.
    roots: Vec<[f64; 2]>,
}

/// `e^(-2 pi i k / n)`, the angle reduced first.
fn root(k: usize, n: usize) -> [f64; 2] {
    let angle = -2.0 * PI * ((k % n) as f64) / n as f64;
    [angle.cos(), angle.sin()]
}

fn times(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}
fn plus(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] + b[0], a[1] + b[1]]
}
fn minus(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] - b[0], a[1] - b[1]]
}
fn scaled(a: [f64; 2], s: f64) -> [f64; 2] {
    [a[0] * s, a[1] * s]
}
/// Times `-i`.
fn turned(a: [f64; 2]) -> [f64; 2] {
    [a[1], -a[0]]
}

impl Fft {
    /// Plans a transform.
    pub fn new(len: usize) -> Self {
        let complex = if len.is_multiple_of(2) { len / 2 } else { len };
        let mut stages = Vec::new();
        let (mut rest, mut stride) = (complex, 1);
        while rest > 1 {
            let radix = [4, 5, 3, 2].into_iter().find(|r| rest % r == 0).unwrap_or_else(|| {
                (7..).step_by(2).take_while(|f| f * f <= rest).find(|f| rest % f == 0).unwrap_or(rest)
            });
            let m = rest / radix;
            let twiddles = (0..m).flat_map(|p| (1..radix).map(move |j| root(p * j, m * radix))).collect();
            let roots = if radix > 5 { (0..radix).map(|j| root(j, radix)).collect() } else { Vec::new() };
            stages.push(Stage { radix, m, stride, twiddles, roots });
            rest = m;
            stride *= radix;
        }
        let split = if len.is_multiple_of(2) { (0..=complex / 2).map(|k| root(k, len)).collect() } else { Vec::new() };
        Self { len, complex, stages, split }
    }

    /// Length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Length zero?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// |X|^2 of a real frame of `len` samples, for bins `0..=len/2`.
    ///
    /// # Panics
    /// When `frame` is not `len` long or `power` not `len / 2 + 1`.
    pub fn power(&self, frame: &[f64], scratch: &mut Vec<f64>, power: &mut [f64]) {
        assert_eq!(frame.len(), self.len, "a frame of the planned length");
        assert_eq!(power.len(), self.len / 2 + 1, "one power a bin");
        let n = self.complex;
        if n == 0 {
            power.fill(0.0);
            return;
        }
        scratch.resize(4 * n, 0.0);
        let (a, b) = scratch.split_at_mut(2 * n);
        let (mut a, _) = a.as_chunks_mut::<2>();
        let (mut b, _) = b.as_chunks_mut::<2>();
        let real = !self.len.is_multiple_of(2);
        for (i, a) in a.iter_mut().enumerate() {
            *a = if real { [frame[i], 0.0] } else { [frame[2 * i], frame[2 * i + 1]] };
        }
        for stage in &self.stages {
            stage.run(a, b);
            std::mem::swap(&mut a, &mut b);
        }
        if real {
            for (power, v) in power.iter_mut().zip(a.iter()) {
                *power = v[0] * v[0] + v[1] * v[1];
            }
            return;
        }
        // Even and odd samples' spectra out of one: E = (Z[k] + Z*[n-k]) / 2, O = (Z[k] - Z*[n-k]) / 2i,
        // X[k] = E + w^k O and X[n-k] = (E - w^k O)*.
        for (k, w) in self.split.iter().enumerate() {
            let z = a[k % n];
            let y = a[(n - k) % n];
            let even = scaled(plus(z, [y[0], -y[1]]), 0.5);
            let odd = times(*w, scaled(turned(minus(z, [y[0], -y[1]])), 0.5));
            let (low, high) = (plus(even, odd), minus(even, odd));
            power[n - k] = high[0] * high[0] + high[1] * high[1];
            power[k] = low[0] * low[0] + low[1] * low[1];
        }
    }
}

impl Stage {
    fn run(&self, x: &[[f64; 2]], y: &mut [[f64; 2]]) {
        match self.radix {
            2 => self.each::<2>(x, y, |[a, b]| [plus(a, b), minus(a, b)]),
            3 => self.each::<3>(x, y, |[a, b, c]| {
                let (s, d) = (plus(b, c), scaled(turned(minus(b, c)), 0.75_f64.sqrt()));
                let t = minus(a, scaled(s, 0.5));
                [plus(a, s), plus(t, d), minus(t, d)]
            }),
            4 => self.each::<4>(x, y, |[a, b, c, d]| {
                let (s, t) = (plus(a, c), minus(a, c));
                let (u, v) = (plus(b, d), turned(minus(b, d)));
                [plus(s, u), plus(t, v), minus(s, u), minus(t, v)]
            }),
            5 => {
                let (w1, w2) = (root(1, 5), root(2, 5));
                self.each::<5>(x, y, |[a, b, c, d, e]| {
                    let (s1, d1) = (plus(b, e), minus(b, e));
                    let (s2, d2) = (plus(c, d), minus(c, d));
                    let t1 = plus(a, plus(scaled(s1, w1[0]), scaled(s2, w2[0])));
                    let t2 = plus(a, plus(scaled(s1, w2[0]), scaled(s2, w1[0])));
                    // The sines, times i: w1 and w2 have negative sines already.
                    let u1 = turned(plus(scaled(d1, -w1[1]), scaled(d2, -w2[1])));
                    let u2 = turned(minus(scaled(d1, -w2[1]), scaled(d2, -w1[1])));
                    [plus(a, plus(s1, s2)), plus(t1, u1), plus(t2, u2), minus(t2, u2), minus(t1, u1)]
                });
            }
            _ => self.any(x, y),
        }
    }

    #[inline(always)]
    fn each<const R: usize>(&self, x: &[[f64; 2]], y: &mut [[f64; 2]], f: impl Fn([[f64; 2]; R]) -> [[f64; 2]; R]) {
        let (m, s) = (self.m, self.stride);
        for p in 0..m {
            let mut w = [[1.0, 0.0]; R];
            w[1..].copy_from_slice(&self.twiddles[p * (R - 1)..(p + 1) * (R - 1)]);
            let from: [&[[f64; 2]]; R] = std::array::from_fn(|j| &x[s * (p + m * j)..][..s]);
            let to = &mut y[s * R * p..][..s * R];
            for q in 0..s {
                let out = f(std::array::from_fn(|j| from[j][q]));
                to[q] = out[0];
                for j in 1..R {
                    to[s * j + q] = times(out[j], w[j]);
                }
            }
        }
    }

    /// Any radix, by its definition.
    fn any(&self, x: &[[f64; 2]], y: &mut [[f64; 2]]) {
        let (m, s, r) = (self.m, self.stride, self.radix);
        for p in 0..m {
            for q in 0..s {
                for k in 0..r {
                    let mut sum = [0.0; 2];
                    for j in 0..r {
                        sum = plus(sum, times(x[q + s * (p + m * j)], self.roots[j * k % r]));
                    }
                    let w = if k == 0 { [1.0, 0.0] } else { self.twiddles[p * (r - 1) + k - 1] };
                    y[q + s * (r * p + k)] = times(sum, w);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_direct_transform() {
        let mut seed = 1_u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        let mut scratch = Vec::new();
        for n in (1..=64).chain([77, 98, 100, 121, 200, 226, 400, 401, 480, 512]) {
            let frame: Vec<f64> = (0..n).map(|_| random()).collect();
            let mut power = vec![0.0; n / 2 + 1];
            Fft::new(n).power(&frame, &mut scratch, &mut power);
            let energy: f64 = frame.iter().map(|v| v * v).sum();
            for (k, power) in power.iter().enumerate() {
                let sum = frame.iter().enumerate().fold([0.0; 2], |s, (t, v)| plus(s, scaled(root(t * k, n), *v)));
                let direct = sum[0] * sum[0] + sum[1] * sum[1];
                assert!((power - direct).abs() <= 1e-12 * (direct + energy), "n {n} bin {k}: {power} {direct}");
            }
        }
    }

    #[test]
    fn a_tone_lands_in_its_bin() {
        let frame: Vec<f64> = (0..400).map(|t| (2.0 * PI * 25.0 * f64::from(t) / 400.0).sin()).collect();
        let mut power = vec![0.0; 201];
        Fft::new(400).power(&frame, &mut Vec::new(), &mut power);
        assert!((power[25] - 40_000.0).abs() < 1e-6);
        assert!(power.iter().enumerate().all(|(k, p)| k == 25 || *p < 1e-18));
    }
}
