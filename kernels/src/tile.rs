//! The innermost kernels: a tile of rows and panels, one for every instruction set and size.

use crate::gemm::Epilogue;
use crate::isa::{Isa, Kernel};
use crate::lanes::{Elem, Lanes, N, Scalar};
use crate::math::gelu;

/// Rows of the tallest tile of any instruction set.
pub(crate) const MOST_ROWS: usize = 12;

/// R rows of `k` floats (`row` apart) times P panels (`panel` apart).
pub(crate) struct Tile<W> {
    pub k: usize,
    pub a: *const f32,
    pub row: usize,
    pub w: *const W,
    pub panel: usize,
    /// What sums start from: null for zero, stride 0 for the same in every row.
    pub start: *const f32,
    pub start_stride: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    pub epilogue: Epilogue,
}

/// A tile of one size, as something the dispatch can compile.
struct Sized<'a, W, const R: usize, const P: usize>(&'a Tile<W>);

impl<W: Elem, const R: usize, const P: usize> Kernel for Sized<'_, W, R, P> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let t = self.0;
        let mut acc = [[L::splat(0.0); P]; R];
        // SAFETY: whoever calls `Tiles::run` promises the rows, panels and outputs.
        unsafe {
            if !t.start.is_null() {
                for r in 0..R {
                    for p in 0..P {
                        acc[r][p] = L::load(t.start.add(r * t.start_stride + p * N));
                    }
                }
            }
            for i in 0..t.k {
                let mut b = [L::splat(0.0); P];
                for p in 0..P {
                    b[p] = W::lanes::<L>(t.w.add(p * t.panel + i * N));
                }
                for r in 0..R {
                    let x = L::splat(*t.a.add(r * t.row + i));
                    for p in 0..P {
                        acc[r][p] = x.fma(b[p], acc[r][p]);
                    }
                }
            }
            if t.epilogue == Epilogue::AddTo {
                for r in 0..R {
                    for p in 0..P {
                        acc[r][p] = L::load(t.out.add(r * t.out_stride + p * N)).add(acc[r][p]);
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    acc[r][p].store(t.out.add(r * t.out_stride + p * N));
                }
            }
            if t.epilogue == Epilogue::Gelu {
                for i in 0..R * P {
                    let at = t.out.add(i / P * t.out_stride + i % P * N);
                    gelu(L::load(at)).store(at);
                }
            }
        }
    }
}

/// One compiled tile.
///
/// # Safety
/// The machine has the instructions; rows, panels and outputs are as the tile says.
type Run<W> = unsafe fn(&Tile<W>);

/// The tiles of one instruction set: by rows - 1, with one panel and with the widest.
pub(crate) struct Tiles<W: 'static> {
    one: &'static [Run<W>],
    /// Panels and tile, where several panels pay.
    wide: &'static [(usize, Run<W>)],
}

impl<W: Elem> Tiles<W> {
    const SCALAR: Self = Self {
        one: &[sc::<W, 1>, sc::<W, 2>, sc::<W, 3>, sc::<W, 4>, sc::<W, 5>, sc::<W, 6>],
        wide: &[(1, sc::<W, 1>), (1, sc::<W, 2>), (1, sc::<W, 3>), (1, sc::<W, 4>), (1, sc::<W, 5>), (1, sc::<W, 6>)],
    };

    /// For an instruction set the machine has (else the plain one).
    pub(crate) fn of(isa: Isa) -> &'static Self {
        #[cfg(target_arch = "x86_64")]
        if isa.available() {
            match isa {
                Isa::Avx2 => return &Self::AVX2,
                Isa::Avx512 => return &Self::AVX512,
                Isa::Scalar => {}
            }
        }
        let _ = isa;
        &Self::SCALAR
    }

    /// Rows a tile has at most: what fills the registers with sums.
    pub(crate) fn rows(&self) -> usize {
        self.one.len()
    }

    /// Panels that go together with `rows` rows.
    pub(crate) fn width(&self, rows: usize) -> usize {
        self.wide[rows - 1].0
    }

    /// Runs a tile of `rows` rows and `panels` panels (1 or 2 of them, or the width).
    ///
    /// # Safety
    /// Rows, panels and outputs are as the tile says.
    pub(crate) unsafe fn run(&self, rows: usize, panels: usize, tile: &Tile<W>) {
        let (wide, run) = self.wide[rows - 1];
        if panels == wide {
            // SAFETY: the caller's promise; `of` checked the machine.
            unsafe { run(tile) };
            return;
        }
        for p in 0..panels {
            // SAFETY: as above, panel by panel.
            unsafe {
                let part = Tile {
                    w: tile.w.add(p * tile.panel),
                    start: if tile.start.is_null() { tile.start } else { tile.start.add(p * N) },
                    out: tile.out.add(p * N),
                    ..*tile
                };
                self.one[rows - 1](&part);
            }
        }
    }
}

/// The plain tile, row by row.
unsafe fn sc<W: Elem, const R: usize>(tile: &Tile<W>) {
    for r in 0..R {
        // SAFETY: a row of the tile.
        unsafe {
            let row = Tile {
                a: tile.a.add(r * tile.row),
                start: if tile.start.is_null() { tile.start } else { tile.start.add(r * tile.start_stride) },
                out: tile.out.add(r * tile.out_stride),
                ..*tile
            };
            Sized::<W, 1, 1>(&row).run::<Scalar>();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Elem, Kernel, Sized, Tile, Tiles};
    use crate::lanes::x86::{Avx2, Avx512};

    #[target_feature(enable = "avx2,fma,f16c")]
    fn a2<W: Elem, const R: usize, const P: usize>(tile: &Tile<W>) {
        Sized::<W, R, P>(tile).run::<Avx2>();
    }

    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    fn a5<W: Elem, const R: usize, const P: usize>(tile: &Tile<W>) {
        Sized::<W, R, P>(tile).run::<Avx512>();
    }

    impl<W: Elem> Tiles<W> {
        /// Twelve of sixteen registers hold sums.
        pub(super) const AVX2: Self = Self {
            one: &[a2::<W, 1, 1>, a2::<W, 2, 1>, a2::<W, 3, 1>, a2::<W, 4, 1>, a2::<W, 5, 1>, a2::<W, 6, 1>],
            wide: &[
                (4, a2::<W, 1, 4>),
                (2, a2::<W, 2, 2>),
                // Two panels more would not fit the registers.
                (1, a2::<W, 3, 1>),
                (1, a2::<W, 4, 1>),
                (1, a2::<W, 5, 1>),
                (1, a2::<W, 6, 1>),
            ],
        };
        /// Twenty-four of thirty-two registers hold sums: each weight is read for twelve rows.
        pub(super) const AVX512: Self = Self {
            one: &[
                a5::<W, 1, 1>,
                a5::<W, 2, 1>,
                a5::<W, 3, 1>,
                a5::<W, 4, 1>,
                a5::<W, 5, 1>,
                a5::<W, 6, 1>,
                a5::<W, 7, 1>,
                a5::<W, 8, 1>,
                a5::<W, 9, 1>,
                a5::<W, 10, 1>,
                a5::<W, 11, 1>,
                a5::<W, 12, 1>,
            ],
            wide: &[
                (4, a5::<W, 1, 4>),
                (4, a5::<W, 2, 4>),
                (4, a5::<W, 3, 4>),
                (4, a5::<W, 4, 4>),
                (2, a5::<W, 5, 2>),
                (2, a5::<W, 6, 2>),
                (2, a5::<W, 7, 2>),
                (2, a5::<W, 8, 2>),
                (2, a5::<W, 9, 2>),
                (2, a5::<W, 10, 2>),
                (2, a5::<W, 11, 2>),
                (2, a5::<W, 12, 2>),
            ],
        };
    }
}

/// Weights as f32.
pub(crate) fn convert<W: Elem>(isa: Isa, from: &[W], to: &mut [f32]) {
    isa.call(Convert(from, to));
}

struct Convert<'a, W>(&'a [W], &'a mut [f32]);

impl<W: Elem> Kernel for Convert<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for i in (0..self.0.len().min(self.1.len()) / N * N).step_by(N) {
            // SAFETY: whole vectors inside both.
            unsafe { W::lanes::<L>(self.0.as_ptr().add(i)).store(self.1.as_mut_ptr().add(i)) };
        }
    }
}
