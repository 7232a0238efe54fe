//! How quantised rows lie in memory: groups of eight rows, interleaved four inputs at a time.
//!
//! A group is a row of records. A record is what shares a float scale: one block of 32 inputs, a
//! super-block of 256, or an MLX group. It holds, for its eight rows, the float scales (and float
//! minima), then 8-bit scales (and minima) of its sub-blocks in pairs, then the codes, 32 inputs
//! after 32. In the codes of a block of 32, 32-bit lane `r` of step `s` belongs to row `r` and inputs
//! `4 s .. 4 s + 4`; codes of fewer than 8 bits share bytes between steps, never between rows.

/// Rows of a group.
pub(crate) const ROWS: usize = 8;
/// Inputs of a block.
pub(crate) const BLOCK: usize = 32;
/// Blocks of a slab of activations, and of a super-block.
pub(crate) const SLAB: usize = 8;

/// How the codes of a block are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Unsigned of 2 bits.
    U2,
    /// Unsigned: a plane of 2 bits, a plane of 1.
    U3,
    /// Unsigned of 4 bits.
    U4,
    /// Unsigned: a plane of 4 bits, a plane of 1.
    U5,
    /// Unsigned: a plane of 4 bits, a plane of 2.
    U6,
    /// Signed bytes.
    S8,
    /// 4 bits that number unsigned values up to 31.
    Table,
    /// 4 bits that number signed values up to +-64.
    Signed,
    /// 4 bits that number signed bytes.
    Wide,
}

impl Code {
    /// Bytes of a block of eight rows.
    pub(crate) const fn bytes(self) -> usize {
        BLOCK
            * match self {
                Self::U2 => 2,
                Self::U3 => 3,
                Self::U4 | Self::Table | Self::Signed | Self::Wide => 4,
                Self::U5 => 5,
                Self::U6 => 6,
                Self::S8 => 8,
            }
    }

    /// Are the values signed bytes (else unsigned)?
    pub(crate) const fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::Signed | Self::Wide)
    }

    /// Are codes positions in a table?
    pub(crate) const fn looked_up(self) -> bool {
        matches!(self, Self::Table | Self::Signed | Self::Wide)
    }

    /// Writes the codes of one row of a block: `codes[s]` holds four of them.
    pub(crate) fn put(self, block: &mut [u8], row: usize, codes: &[u32]) {
        let mut set = |at: usize, v: u32| {
            block[at * 32 + row * 4..at * 32 + row * 4 + 4].copy_from_slice(&v.to_le_bytes());
        };
        let planes = |shift: u32, mask: u32, bits: u32, range: std::ops::Range<usize>| {
            range.enumerate().fold(0, |v, (i, s)| v | ((codes[s] >> shift) & mask) << (bits * i as u32))
        };
        match self {
            Self::U2 => (0..2).for_each(|j| set(j, planes(0, 0x0303_0303, 2, 4 * j..4 * j + 4))),
            Self::U3 => {
                (0..2).for_each(|j| set(j, planes(0, 0x0303_0303, 2, 4 * j..4 * j + 4)));
                set(2, planes(2, 0x0101_0101, 1, 0..8));
            }
            Self::U4 | Self::Table | Self::Signed | Self::Wide | Self::U5 | Self::U6 => {
                (0..4).for_each(|j| set(j, planes(0, 0x0f0f_0f0f, 4, 2 * j..2 * j + 2)));
                match self {
                    Self::U5 => set(4, planes(4, 0x0101_0101, 1, 0..8)),
                    Self::U6 => (0..2).for_each(|j| set(4 + j, planes(4, 0x0303_0303, 2, 4 * j..4 * j + 4))),
                    _ => {}
                }
            }
            Self::S8 => (0..8).for_each(|s| set(s, codes[s])),
        }
    }

    /// Four codes of a row.
    #[inline(always)]
    pub(crate) fn get(self, block: &[u8], row: usize, s: usize) -> [u8; 4] {
        let at = |at: usize| {
            let b = &block[at * 32 + row * 4..at * 32 + row * 4 + 4];
            u32::from_le_bytes([b[0], b[1], b[2], b[3]])
        };
        let two = |first: usize| (at(first + s / 4) >> (2 * (s % 4))) & 0x0303_0303;
        let four = || (at(s / 2) >> (4 * (s % 2))) & 0x0f0f_0f0f;
        let one = |first: usize| (at(first) >> s) & 0x0101_0101;
        let codes = match self {
            Self::U2 => two(0),
            Self::U3 => two(0) | one(2) << 2,
            Self::U4 | Self::Table | Self::Signed | Self::Wide => four(),
            Self::U5 => four() | one(4) << 4,
            Self::U6 => four() | two(4) << 4,
            Self::S8 => at(s),
        };
        codes.to_le_bytes()
    }
}

/// How float scales are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    F16,
    BF16,
    F32,
}

impl Form {
    /// Bytes of eight.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 16,
            Self::F32 => 32,
        }
    }

    pub(crate) fn put(self, eight: &mut [u8], row: usize, bits: u32) {
        match self {
            Self::F16 | Self::BF16 => eight[row * 2..row * 2 + 2].copy_from_slice(&(bits as u16).to_le_bytes()),
            Self::F32 => eight[row * 4..row * 4 + 4].copy_from_slice(&bits.to_le_bytes()),
        }
    }

    pub(crate) fn get(self, eight: &[u8], row: usize) -> f32 {
        let two = || u16::from_le_bytes([eight[row * 2], eight[row * 2 + 1]]);
        match self {
            Self::F16 => half::f16::from_bits(two()).to_f32(),
            Self::BF16 => half::bf16::from_bits(two()).to_f32(),
            Self::F32 => {
                let b = &eight[row * 4..row * 4 + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
        }
    }
}

/// What every record of a matrix is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    pub code: Code,
    /// Inputs that share an 8-bit scale: 16 or 32 (super-blocks of 256 with one activation scale),
    /// or 0: no such scales, and an activation scale every 32.
    pub sub: usize,
    /// Blocks of a record: 1, 2, 4 or 8.
    pub blocks: usize,
    /// Is there a minimum: 8 bits a sub-block, taken away after a second float scale; or where
    /// `sub` is 0 a float, added?
    pub min: bool,
    /// Taken away from every value.
    pub offset: i32,
    pub form: Form,
    /// A power of two that belongs to the float scale.
    pub factor: f32,
    /// What codes stand for when they are looked up: `signed` says as what.
    pub table: [u8; 16],
}

/// Our own 8 bits: signed bytes, a float scale for 32.
pub(crate) const Q8: Layout =
    Layout { code: Code::S8, sub: 0, blocks: 1, min: false, offset: 0, form: Form::F32, factor: 1.0, table: [0; 16] };

impl Layout {
    /// Bytes of float scales and minima.
    pub(crate) fn floats(&self) -> usize {
        self.form.bytes() * (1 + usize::from(self.min))
    }

    /// Sub-blocks of a record.
    pub(crate) fn subs(&self) -> usize {
        (self.blocks * BLOCK).checked_div(self.sub).unwrap_or(0)
    }

    /// Bytes before the codes.
    pub(crate) fn header(&self) -> usize {
        self.floats() + self.subs() * ROWS * (1 + usize::from(self.min))
    }

    /// Bytes of a record.
    pub(crate) fn record(&self) -> usize {
        self.header() + self.blocks * self.code.bytes()
    }

    /// Records of a row.
    pub(crate) fn records(&self, in_dim: usize) -> usize {
        in_dim.div_ceil(self.blocks * BLOCK)
    }

    /// Values of a block as bytes, `[8 steps][8 rows][4]`.
    #[inline(always)]
    pub(crate) fn unpack(&self, block: &[u8], bytes: &mut [u8; 256]) {
        for s in 0..8 {
            for r in 0..ROWS {
                let mut four = self.code.get(block, r, s);
                if self.code.looked_up() {
                    four = four.map(|c| self.table[usize::from(c)]);
                }
                bytes[s * 32 + r * 4..s * 32 + r * 4 + 4].copy_from_slice(&four);
            }
        }
    }

    /// The value of a byte as [`Layout::unpack`] gives it.
    #[inline(always)]
    pub(crate) fn value(&self, byte: u8) -> i32 {
        if self.code.signed() { i32::from(byte as i8) } else { i32::from(byte) }
    }

    /// Writes one row of a record.
    pub(crate) fn put(&self, record: &mut [u8], row: usize, from: &Record) {
        self.form.put(record, row, from.scale);
        if self.min {
            self.form.put(&mut record[self.form.bytes()..], row, from.min);
        }
        let (floats, subs) = (self.floats(), self.subs());
        for i in 0..subs {
            let at = i / 2 * 16 + row * 2 + i % 2;
            record[floats + at] = from.scales[i] as u8;
            if self.min {
                record[floats + subs * ROWS + at] = from.mins[i];
            }
        }
        let header = self.header();
        for (b, block) in record[header..].chunks_exact_mut(self.code.bytes()).enumerate() {
            self.code.put(block, row, &from.codes[b * 8..b * 8 + 8]);
        }
    }
}

/// One row of a record, before it is packed.
pub(crate) struct Record {
    /// Bits of the float scale in the layout's form.
    pub scale: u32,
    /// Bits of the scale of the minima, or of the float minimum.
    pub min: u32,
    pub scales: [i8; 16],
    pub mins: [u8; 16],
    /// Four codes each.
    pub codes: [u32; 64],
}

impl Record {
    pub(crate) const EMPTY: Self = Self { scale: 0, min: 0, scales: [0; 16], mins: [0; 16], codes: [0; 64] };
}
