//! Where captions go: standard output, or a file that appears under its name only when it is whole.

use std::fs::File;
use std::io::{self, BufWriter, Stdout, Write};
use std::path::PathBuf;

use oxiline_graph::{Error, Result};

use super::{Caption, CaptionWriter, Format};
use crate::place::{Place, full, rename};

/// Was it written, or is there nobody to read it any more?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// Yes.
    Yes,
    /// The reader of the pipe went away: stop, quietly.
    ReaderGone,
}

enum Target {
    Stdout(Stdout),
    File(BufWriter<File>),
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File(out) => out.write(bytes),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File(out) => out.flush(),
        }
    }
}

/// Captions on their way to standard output or to a file.
///
/// A file is written as `NAME.partial` and renamed by [`complete`](Self::complete); anything else
/// that ends the work leaves the part under that name.
pub struct CaptionOutput {
    writer: CaptionWriter<Target>,
    /// Final and temporary name.
    names: Option<(PathBuf, PathBuf)>,
    /// What messages call it.
    place: String,
    /// Captions that reached the file whole.
    kept: usize,
}

impl CaptionOutput {
    /// Opens `to`: `-` is standard output.
    ///
    /// # Errors
    /// A sentence when the file cannot be made.
    pub fn open(to: &str, format: Format, max_line: Option<usize>) -> Result<Self> {
        if to == "-" {
            let writer = CaptionWriter::new(Target::Stdout(io::stdout()), format, max_line);
            return Ok(Self { writer, names: None, place: "standard output".into(), kept: 0 });
        }
        let place = Place::open("captions", to)?;
        let writer = CaptionWriter::new(Target::File(BufWriter::new(place.file)), format, max_line);
        Ok(Self { writer, names: place.names, place: format!("`{to}`"), kept: 0 })
    }

    /// The media ends here: no later time is written.
    pub fn limit(&mut self, seconds: f64) {
        self.writer.limit(seconds);
    }

    /// Segments written.
    pub fn count(&self) -> usize {
        self.writer.count()
    }

    /// Writes a segment; it is visible to readers of the pipe or file at once.
    ///
    /// # Errors
    /// A sentence when the disk is full or the like; what was written before stays.
    pub fn push(&mut self, caption: &Caption) -> Result<Written> {
        let result = self.writer.push(caption);
        if result.is_ok() {
            self.kept = self.writer.count();
        }
        self.judge(result)
    }

    /// Everything came: ends the file and gives it its name.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn complete(mut self, duration: Option<f64>) -> Result<Written> {
        let result = self.writer.finish(duration);
        let written = self.judge(result)?;
        if let Some((path, partial)) = self.names.take() {
            if let Target::File(out) = self.writer.into_inner() {
                out.into_inner()
                    .map_err(io::IntoInnerError::into_error)
                    .and_then(|f| f.sync_data())
                    .map_err(|e| full("captions", &partial, &e))?;
            }
            rename("captions are", &partial, &path)?;
        }
        Ok(written)
    }

    /// The work was stopped or failed: ends the file as far as it got and keeps it as
    /// `NAME.partial`. Returns a sentence that says so.
    pub fn keep_partial(mut self, duration: Option<f64>) -> Option<String> {
        let _ = self.writer.finish(duration);
        let (count, (path, partial)) = (self.kept, self.names.take()?);
        if count == 0 {
            drop(self.writer);
            let _ = std::fs::remove_file(&partial);
            return Some(format!("`{}` was not written: no caption got there", path.display()));
        }
        Some(format!(
            "the work stopped before the end: the first {count} captions are in `{}`, `{}` was not written",
            partial.display(),
            path.display()
        ))
    }

    fn judge(&self, result: io::Result<()>) -> Result<Written> {
        match (result, &self.names) {
            (Ok(()), _) => Ok(Written::Yes),
            (Err(e), None) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
            (Err(e), None) => Err(Error::msg(format_args!("captions cannot be written to {}: {e}", self.place))),
            (Err(e), Some((_, partial))) => Err(full("captions", partial, &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Caption {
        Caption { start: 0.0, end: 1.0, text: text.into(), ..Caption::default() }
    }

    #[test]
    fn a_file_gets_its_name_only_when_whole() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.srt");
        let partial = dir.path().join("a.srt.partial");
        let mut out = CaptionOutput::open(to.to_str().unwrap(), Format::Srt, None).unwrap();
        assert_eq!(out.push(&said("hello")).unwrap(), Written::Yes);
        assert!(!to.exists());
        // Flushed for each segment, so that it can be watched.
        assert!(std::fs::read_to_string(&partial).unwrap().contains("hello"));
        out.complete(None).unwrap();
        assert!(!partial.exists());
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "1\n00:00:00,000 --> 00:00:01,000\nhello\n\n");
    }

    #[test]
    fn a_stopped_file_stays_partial_and_valid_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.json");
        std::fs::write(&to, "old").unwrap();
        let mut out = CaptionOutput::open(to.to_str().unwrap(), Format::Json, None).unwrap();
        out.push(&said("half")).unwrap();
        let note = out.keep_partial(None).unwrap();
        assert!(note.contains("first 1 captions") && note.contains("a.json.partial"), "{note}");
        assert_eq!(std::fs::read_to_string(&to).unwrap(), "old", "what was there before is not touched");
        let partial = std::fs::read_to_string(dir.path().join("a.json.partial")).unwrap();
        serde_json::from_str::<serde_json::Value>(&partial).unwrap();
    }

    #[test]
    fn nothing_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("a.txt");
        let out = CaptionOutput::open(to.to_str().unwrap(), Format::Text, None).unwrap();
        assert!(out.keep_partial(None).is_some());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn places_that_cannot_be_written_are_one_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("no/such/a.srt");
        let Err(error) = CaptionOutput::open(missing.to_str().unwrap(), Format::Srt, None) else { panic!() };
        assert!(error.to_string().contains("make the directory"), "{error}");
        let Err(error) = CaptionOutput::open(dir.path().to_str().unwrap(), Format::Srt, None) else { panic!() };
        assert!(error.to_string().contains("is a directory"), "{error}");
    }

    #[test]
    fn a_recording_is_not_replaced_by_its_captions() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("talk.wav");
        let wav = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0";
        std::fs::write(&to, wav).unwrap();
        let Err(error) = CaptionOutput::open(to.to_str().unwrap(), Format::Srt, None) else { panic!() };
        assert!(error.to_string().contains("another name"), "{error}");
        assert_eq!(std::fs::read(&to).unwrap(), wav);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn devices_are_written_and_links_followed() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = CaptionOutput::open("/dev/null", Format::Text, None).unwrap();
        out.push(&said("hello")).unwrap();
        out.complete(None).unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file(), "the device is still one");

        let (real, link) = (dir.path().join("real.txt"), dir.path().join("link.txt"));
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let mut out = CaptionOutput::open(link.to_str().unwrap(), Format::Text, None).unwrap();
        out.push(&said("hello")).unwrap();
        out.complete(None).unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "hello\n");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_one_sentence() {
        let out = File::options().write(true).open("/dev/full").unwrap();
        let mut output = CaptionOutput {
            writer: CaptionWriter::new(Target::File(BufWriter::new(out)), Format::Text, None),
            names: Some(("x".into(), "x.partial".into())),
            place: "`x`".into(),
            kept: 0,
        };
        let error = output.push(&said("hello")).unwrap_err().to_string();
        assert!(error.contains("x.partial") && error.contains("free some space"), "{error}");
        let note = output.keep_partial(None).unwrap();
        assert!(note.contains("was not written"), "{note}");
    }
}
