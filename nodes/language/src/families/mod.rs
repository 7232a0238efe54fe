//! The families, each a short file: from a checkpoint's configuration to a [`crate::decoder::Spec`].
