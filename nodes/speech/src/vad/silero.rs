//! The network: a learned short-time Fourier transform, four convolutions, one LSTM cell.
//!
//! Only the LSTM needs chunks in order; everything before it is computed for many chunks at once.
//! The kernels give a row the same result whatever is computed beside it, so the probabilities do
//! not depend on how the audio is cut into calls.

use std::path::Path;

use oxiline_graph::{Error, Result, bail};
use oxiline_kernels::{Matrix, Pool, Storage};
use safetensors::{Dtype, SafeTensors};

/// Samples of one chunk: 32 ms at 16 kHz, one probability each.
pub const CHUNK: usize = 512;
/// Samples of the chunk before that every chunk is judged with.
const CONTEXT: usize = 64;
/// Context, chunk, and 64 samples reflected at the end.
const PADDED: usize = CONTEXT + CHUNK + 64;
/// Length and step of the transform; 4 frames a chunk.
const FFT: usize = 256;
const STEP: usize = 128;
const FRAMES: usize = 4;
const BINS: usize = FFT / 2 + 1;
/// Width of the LSTM.
const WIDTH: usize = 128;
/// Chunks computed at once.
const BATCH: usize = 64;

static WEIGHTS: &[u8] = include_bytes!("../../assets/silero_vad_16k.safetensors");

/// The network's weights.
pub struct Silero {
    stft: Matrix,
    convs: [Conv; 4],
    input: Matrix,
    input_bias: Vec<f32>,
    recurrent: Matrix,
    recurrent_bias: Vec<f32>,
    head: Vec<f32>,
    head_bias: f32,
}

/// A convolution of kernel 3 and padding 1 over the few frames of a chunk.
struct Conv {
    /// `[out, 3 * in]`, tap-major.
    weight: Matrix,
    bias: Vec<f32>,
    stride: usize,
}

/// What the network remembers of one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// The last samples of the chunk before, then samples that do not fill a chunk yet.
    samples: Vec<f32>,
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl Default for State {
    fn default() -> Self {
        Self { samples: vec![0.0; CONTEXT], hidden: vec![0.0; WIDTH], cell: vec![0.0; WIDTH] }
    }
}

impl State {
    /// Samples waiting for their chunk to fill up.
    pub fn pending(&self) -> usize {
        self.samples.len() - CONTEXT
    }
}

impl Silero {
    /// The weights that come with this crate (Silero VAD 6, MIT licence).
    pub fn bundled() -> Result<Self> {
        Self::parse(WEIGHTS).map_err(|e| Error::msg(format_args!("the bundled Silero weights: {e}")))
    }

    /// Weights from a safetensors file with the same tensor names.
    pub fn load(path: &Path) -> Result<Self> {
        // The real file has 1.2 MB; anything much larger is something else.
        let size = std::fs::metadata(path).map_err(|e| Error::msg(format_args!("{}: {e}", path.display())))?.len();
        if size > 16 << 20 {
            bail!("{} has {size} bytes: too large for Silero's 16 kHz weights", path.display());
        }
        let data = std::fs::read(path).map_err(|e| Error::msg(format_args!("{}: {e}", path.display())))?;
        Self::parse(&data).map_err(|e| Error::msg(format_args!("{}: {e}", path.display())))
    }

    fn parse(data: &[u8]) -> Result<Self> {
        let tensors = SafeTensors::deserialize(data).map_err(|e| Error::msg(format_args!("not safetensors: {e}")))?;
        let read = |name: &str, shape: &[usize]| -> Result<Vec<f32>> {
            let Ok(tensor) = tensors.tensor(name) else {
                bail!("tensor `{name}` of shape {shape:?} is missing");
            };
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                bail!("tensor `{name}` is {} {:?}, not F32 {shape:?}", tensor.dtype(), tensor.shape());
            }
            Ok(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        };
        let matrix = |name: &str, shape: &[usize], rows: usize| -> Result<Matrix> {
            let values = read(name, shape)?;
            Ok(Matrix::from_f32(rows, values.len() / rows, &values, Storage::F32))
        };
        let conv = |name: &str, out: usize, input: usize, stride: usize| -> Result<Conv> {
            let values = read(&format!("{name}.weight"), &[out, input, 3])?;
            let mut turned = Vec::with_capacity(values.len());
            for row in values.chunks_exact(input * 3) {
                for tap in 0..3 {
                    turned.extend(row.iter().skip(tap).step_by(3));
                }
            }
            let weight = Matrix::from_f32(out, input * 3, &turned, Storage::F32);
            Ok(Conv { weight, bias: read(&format!("{name}.bias"), &[out])?, stride })
        };
        Ok(Self {
            stft: matrix("stft_conv.weight", &[2 * BINS, 1, FFT], 2 * BINS)?,
            convs: [
                conv("conv1", 128, BINS, 1)?,
                conv("conv2", 64, 128, 2)?,
                conv("conv3", 64, 64, 2)?,
                conv("conv4", WIDTH, 64, 1)?,
            ],
            input: matrix("lstm_cell.weight_ih", &[4 * WIDTH, WIDTH], 4 * WIDTH)?,
            input_bias: read("lstm_cell.bias_ih", &[4 * WIDTH])?,
            recurrent: matrix("lstm_cell.weight_hh", &[4 * WIDTH, WIDTH], 4 * WIDTH)?,
            recurrent_bias: read("lstm_cell.bias_hh", &[4 * WIDTH])?,
            head: read("final_conv.weight", &[1, WIDTH, 1])?,
            head_bias: read("final_conv.bias", &[1])?[0],
        })
    }

    /// Bytes of weights held.
    pub fn bytes(&self) -> u64 {
        let convs: usize = self.convs.iter().map(|conv| conv.weight.bytes() + conv.bias.len() * 4).sum();
        (self.stft.bytes() + convs + self.input.bytes() + self.recurrent.bytes()) as u64
    }

    /// Probabilities of the chunks that become complete with these 16 kHz mono samples.
    pub fn push(&self, pool: &Pool, state: &mut State, samples: &[f32]) -> Vec<f32> {
        let mut probabilities = Vec::new();
        let mut rest = samples;
        // A long call is worked off in pieces, so that it never copies all of its samples.
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(rest.len().min(BATCH * CHUNK));
            rest = later;
            state.samples.extend(piece.iter().map(|x| if x.is_finite() { *x } else { 0.0 }));
            let chunks = state.pending() / CHUNK;
            for first in (0..chunks).step_by(BATCH) {
                let n = BATCH.min(chunks - first);
                let from = first * CHUNK;
                let gates = self.front(pool, &state.samples[from..from + CONTEXT + n * CHUNK]);
                for gates in gates.chunks_exact(4 * WIDTH) {
                    probabilities.push(self.cell(pool, gates, &mut state.hidden, &mut state.cell));
                }
            }
            state.samples.drain(..chunks * CHUNK);
        }
        probabilities
    }

    /// The end of the stream: the probability of the last chunk, filled up with zeros, if there is
    /// one. The state is as new afterwards.
    pub fn finish(&self, pool: &Pool, state: &mut State) -> Option<f32> {
        let missing = match state.pending() {
            0 => None,
            pending => Some(CHUNK - pending),
        };
        let last = missing.and_then(|missing| self.push(pool, state, &vec![0.0; missing]).pop());
        *state = State::default();
        last
    }

    /// Everything before the recurrence: `[64 + n * 512]` samples to `[n, 4 * 128]` LSTM inputs.
    fn front(&self, pool: &Pool, samples: &[f32]) -> Vec<f32> {
        let chunks = samples.len() / CHUNK;
        let mut padded = Vec::with_capacity(chunks * PADDED);
        for chunk in 0..chunks {
            let end = (chunk + 1) * CHUNK + CONTEXT;
            padded.extend_from_slice(&samples[chunk * CHUNK..end]);
            // Reflected without repeating the last sample.
            padded.extend(samples[end - 1 - (PADDED - CHUNK - CONTEXT)..end - 1].iter().rev());
        }
        // PADDED is a multiple of the step: frames of all chunks lie on one grid, of which the
        // frames across chunk borders are left out.
        let mut frames = Vec::with_capacity(chunks * FRAMES * FFT);
        for chunk in padded.chunks_exact(PADDED) {
            for frame in 0..FRAMES {
                frames.extend_from_slice(&chunk[frame * STEP..frame * STEP + FFT]);
            }
        }
        let mut spectrum = vec![0.0; chunks * FRAMES * 2 * BINS];
        self.stft.matmul(pool, &frames, None, &mut spectrum);
        let mut x = Vec::with_capacity(chunks * FRAMES * BINS);
        for row in spectrum.chunks_exact(2 * BINS) {
            let (re, im) = row.split_at(BINS);
            x.extend(re.iter().zip(im).map(|(re, im)| (re * re + im * im).sqrt()));
        }
        let mut frames = FRAMES;
        for conv in &self.convs {
            (x, frames) = conv.run(pool, &x, frames);
        }
        let mut gates = vec![0.0; chunks * 4 * WIDTH];
        self.input.matmul(pool, &x, Some(&self.input_bias), &mut gates);
        gates
    }

    fn cell(&self, pool: &Pool, input: &[f32], hidden: &mut [f32], cell: &mut [f32]) -> f32 {
        let mut gates = [0.0; 4 * WIDTH];
        self.recurrent.matmul(pool, hidden, Some(&self.recurrent_bias), &mut gates);
        let mut logit = self.head_bias;
        for i in 0..WIDTH {
            let gate = |n: usize| gates[n * WIDTH + i] + input[n * WIDTH + i];
            cell[i] = sigmoid(gate(1)) * cell[i] + sigmoid(gate(0)) * gate(2).tanh();
            hidden[i] = sigmoid(gate(3)) * cell[i].tanh();
            logit += self.head[i] * hidden[i].max(0.0);
        }
        sigmoid(logit)
    }
}

impl Conv {
    /// `[chunks * frames, in]` to `[chunks * frames', out]` with ReLU; chunks do not see each other.
    fn run(&self, pool: &Pool, x: &[f32], frames: usize) -> (Vec<f32>, usize) {
        let input = self.weight.in_dim() / 3;
        let out_frames = frames.div_ceil(self.stride);
        let chunks = x.len() / (frames * input);
        let mut rows = vec![0.0; chunks * out_frames * 3 * input];
        for (i, row) in rows.chunks_exact_mut(3 * input).enumerate() {
            let (chunk, frame) = (i / out_frames, i % out_frames * self.stride);
            for (tap, into) in row.chunks_exact_mut(input).enumerate() {
                if let Some(at) = (frame + tap).checked_sub(1).filter(|at| *at < frames) {
                    into.copy_from_slice(&x[(chunk * frames + at) * input..][..input]);
                }
            }
        }
        let mut y = vec![0.0; chunks * out_frames * self.weight.out_dim()];
        self.weight.matmul(pool, &rows, Some(&self.bias), &mut y);
        y.iter_mut().for_each(|v| *v = v.max(0.0));
        (y, out_frames)
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
