//! MLX's affine groups: `w = scale * q + bias`, with `q` of 2, 3, 4, 5, 6 or 8 bits and a scale and a
//! bias for each group of weights of a row.

/// How wide the quants and how long the groups are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Affine {
    bits: u32,
    group: usize,
}

impl Affine {
    /// The widths there are.
    pub const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];

    /// Quants of `bits` bits in groups of `group`; None when MLX has no such width or a group is
    /// empty.
    pub fn new(bits: u32, group: usize) -> Option<Self> {
        (Self::BITS.contains(&bits) && group > 0).then_some(Self { bits, group })
    }

    /// Bits of a quant.
    pub fn bits(self) -> u32 {
        self.bits
    }

    /// Weights that share a scale and a bias.
    pub fn group(self) -> usize {
        self.group
    }

    /// Bytes of a packed row of `in_dim` weights; None when that isn't whole groups and whole 32-bit
    /// words, or too many.
    pub fn row_bytes(self, in_dim: usize) -> Option<usize> {
        let bits = in_dim.checked_mul(self.bits as usize)?;
        (in_dim.is_multiple_of(self.group) && bits.is_multiple_of(32)).then_some(bits / 8)
    }

    /// The quants of whole packed rows: a row is one stream of bits, the lowest bits of the first
    /// byte first.
    ///
    /// # Panics
    /// When `packed` is not as long as `quants` says.
    pub fn unpack(self, packed: &[u8], quants: &mut [u8]) {
        let bits = self.bits as usize;
        assert_eq!(quants.len().checked_mul(bits), packed.len().checked_mul(8), "a quant a weight");
        let mask = (1u64 << bits) - 1;
        for (packed, quants) in packed.chunks(bits).zip(quants.chunks_mut(8)) {
            // Eight quants are `bits` bytes.
            let mut bytes = [0; 8];
            bytes[..packed.len()].copy_from_slice(packed);
            let stream = u64::from_le_bytes(bytes);
            for (i, q) in quants.iter_mut().enumerate() {
                *q = (stream >> (i * bits) & mask) as u8;
            }
        }
    }

    /// The weights of whole packed rows: `scale * q + bias`, in f32, rounded after each operation.
    /// `scales` and `biases` hold one a group, in the order of the weights.
    ///
    /// # Panics
    /// When the lengths do not belong together.
    pub fn dequantize(self, packed: &[u8], scales: &[f32], biases: &[f32], values: &mut [f32]) {
        let bits = self.bits as usize;
        assert_eq!(values.len().checked_mul(bits), packed.len().checked_mul(8), "a quant a weight");
        assert!(values.len().is_multiple_of(self.group), "whole groups");
        let groups = values.len() / self.group;
        assert!(scales.len() == groups && biases.len() == groups, "a scale and a bias a group");
        // So many quants at a time that they are whole bytes and whole groups.
        let groups = if self.group.is_multiple_of(8) { 1 } else { 8 };
        let run = groups * self.group;
        let mut quants = vec![0; run.min(values.len())];
        for (i, (packed, values)) in packed.chunks(run * bits / 8).zip(values.chunks_mut(run)).enumerate() {
            let quants = &mut quants[..values.len()];
            self.unpack(packed, quants);
            for (k, (values, quants)) in values.chunks_mut(self.group).zip(quants.chunks(self.group)).enumerate() {
                let (scale, bias) = (scales[i * groups + k], biases[i * groups + k]);
                for (value, q) in values.iter_mut().zip(quants) {
                    *value = scale * f32::from(*q) + bias;
                }
            }
        }
    }
}
