//! `oxiline models`: pull, list, show, rm.
