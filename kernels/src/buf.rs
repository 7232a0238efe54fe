//! Zeroed memory aligned to cache lines.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A cache line, and a 512-bit register.
const ALIGN: usize = 64;

/// Plain values for which all-zero bytes are a value.
///
/// # Safety
/// The type has no padding, no pointers, no `Drop`, and zero bytes are valid.
pub(crate) unsafe trait Plain: Copy + Send + Sync {}
// SAFETY: numbers.
unsafe impl Plain for f32 {}
// SAFETY: numbers.
unsafe impl Plain for i8 {}
// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: a transparent u16.
unsafe impl Plain for crate::lanes::F16 {}
// SAFETY: a transparent u16.
unsafe impl Plain for crate::lanes::BF16 {}

/// A boxed slice at a cache line. Untouched pages cost no memory.
pub(crate) struct Buf<T: Plain> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: owned plain values.
unsafe impl<T: Plain> Send for Buf<T> {}
// SAFETY: owned plain values.
unsafe impl<T: Plain> Sync for Buf<T> {}

impl<T: Plain> Buf<T> {
    fn layout(len: usize) -> Layout {
        match Layout::array::<T>(len).and_then(|l| l.align_to(ALIGN)) {
            Ok(layout) => layout,
            Err(_) => panic!("a buffer of {len} values is larger than memory can be"),
        }
    }

    /// `len` zeros.
    pub(crate) fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self { start: NonNull::dangling(), len };
        }
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        match NonNull::new(start.cast()) {
            Some(start) => Self { start, len },
            None => handle_alloc_error(layout),
        }
    }
}

impl<T: Plain> Drop for Buf<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() > 0 {
            // SAFETY: allocated with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl<T: Plain> Deref for Buf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` values that we own, or none at a dangling pointer.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: `len` values that we own, or none at a dangling pointer.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> Clone for Buf<T> {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Vec<Buf<f32>>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Lends a thread's own scratch of at least `len` floats, kept for the next kernel. Contents are
/// what the last user left. Nested use gets another buffer.
pub(crate) fn scratch<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let kept = SCRATCH.with_borrow_mut(Vec::pop);
    let mut buf = match kept {
        Some(buf) if buf.len() >= len => buf,
        _ => Buf::zeroed(len),
    };
    let result = work(&mut buf[..len]);
    SCRATCH.with_borrow_mut(|kept| {
        if kept.len() < 4 {
            kept.push(buf);
        }
    });
    result
}
