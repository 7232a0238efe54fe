//! The index on disk.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oxiline_graph::{Error, Result, bail};
use serde::{Deserialize, Serialize};
use tantivy::collector::TopDocs;
use tantivy::query::QueryParser;
use tantivy::schema::{Field, INDEXED, STORED, STRING, Schema, TEXT, Value};
use tantivy::{IndexWriter, TantivyDocument, Term};

use crate::passage::{Passage, Place};

/// What says which model an index was made with.
const ABOUT: &str = "oxiline-index.json";
/// Memory of the writer, bytes: tantivy's least for one thread is 15 MB.
const WRITER: usize = 32 << 20;
/// Passages that each of the two rankings puts forward.
const CANDIDATES: usize = 64;
/// A place at rank r counts `1 / (RANK + r)`: reciprocal rank fusion with its usual constant.
const RANK: f32 = 60.0;

/// What an index was made with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// Format of the folder.
    pub version: u32,
    /// The embedding model, as it was named.
    pub model: String,
    /// Dimensions of its vectors.
    pub dim: usize,
}

impl About {
    /// Of this version.
    pub fn new(model: &str, dim: usize) -> Self {
        Self { version: 1, model: model.into(), dim }
    }
}

/// A passage that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hit {
    /// The file it is of.
    pub file: String,
    /// Where it begins.
    pub place: Place,
    /// The text.
    pub text: String,
    /// Sum of the reciprocal ranks by word and by meaning.
    pub score: f32,
    /// Cosine with the question.
    pub cosine: f32,
}

#[derive(Clone, Copy)]
struct Fields {
    file: Field,
    stamp: Field,
    line: Field,
    time: Field,
    text: Field,
    vector: Field,
}

/// An index in a folder.
pub struct Index {
    folder: PathBuf,
    about: About,
    inner: tantivy::Index,
    fields: Fields,
}

fn schema() -> (Schema, Fields) {
    let mut builder = Schema::builder();
    let fields = Fields {
        file: builder.add_text_field("file", STRING | STORED),
        stamp: builder.add_text_field("stamp", STORED),
        line: builder.add_u64_field("line", INDEXED | STORED),
        time: builder.add_f64_field("time", STORED),
        text: builder.add_text_field("text", TEXT | STORED),
        vector: builder.add_bytes_field("vector", STORED),
    };
    (builder.build(), fields)
}

impl Index {
    /// Opens the index in `folder`, or makes one for vectors of `about`.
    ///
    /// # Errors
    /// The folder holds something else, or an index of another model.
    pub fn create(folder: &Path, about: &About) -> Result<Self> {
        if folder.join(ABOUT).is_file() {
            let index = Self::open(folder)?;
            if index.about.dim != about.dim || index.about.model != about.model {
                bail!(
                    "{}: this index was made with {} ({} dimensions), not {} ({}); use the same model or another folder",
                    folder.display(),
                    index.about.model,
                    index.about.dim,
                    about.model,
                    about.dim
                );
            }
            return Ok(index);
        }
        let part = folder.join(format!("{ABOUT}.part"));
        let foreign = |entry: std::io::Result<std::fs::DirEntry>| entry.map_or(true, |entry| entry.path() != part);
        if folder.read_dir().is_ok_and(|mut entries| entries.any(foreign)) {
            bail!("{}: this folder is not empty and holds no index; name another", folder.display());
        }
        let failed = |e: &dyn std::fmt::Display| Error::msg(format_args!("cannot make {}: {e}", folder.display()));
        std::fs::create_dir_all(folder).map_err(|e| failed(&e))?;
        // A folder with this file is an index, whose passages `open` makes room for: so a program killed at any
        // point here leaves an index, or a folder that one can be made in.
        let text = serde_json::to_string_pretty(about).map_err(|e| failed(&e))?;
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, folder.join(ABOUT)))
            .map_err(|e| failed(&e))?;
        Self::open(folder)
    }

    /// Opens the index in `folder`.
    ///
    /// # Errors
    /// There is none, or it is broken.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(ABOUT);
        if !path.is_file() {
            bail!("{}: there is no index here; make one with `oxiline index DIR FILES...`", folder.display());
        }
        let broken = |e: &dyn std::fmt::Display| {
            Error::msg(format_args!("{}: the index cannot be opened: {e}; remove it and index again", folder.display()))
        };
        let bytes = std::fs::read(&path).map_err(|e| broken(&e))?;
        let about: About = serde_json::from_slice(&bytes).map_err(|e| broken(&e))?;
        if about.version != 1 || about.dim == 0 {
            return Err(broken(&format_args!("it is of version {} with {} dimensions", about.version, about.dim)));
        }
        let (wanted, fields) = schema();
        let text = folder.join("text");
        let inner = match text.join("meta.json").is_file() {
            true => tantivy::Index::open_in_dir(text).map_err(|e| broken(&e))?,
            // Nothing was ever written.
            false => std::fs::create_dir_all(&text)
                .map_err(tantivy::TantivyError::from)
                .and_then(|()| tantivy::directory::MmapDirectory::open(&text).map_err(Into::into))
                .and_then(|directory| tantivy::Index::open_or_create(directory, wanted.clone()))
                .map_err(|e| broken(&e))?,
        };
        if inner.schema() != wanted {
            return Err(broken(&"its fields are others"));
        }
        Ok(Self { folder: folder.into(), about, inner, fields })
    }

    /// What it was made with.
    pub fn about(&self) -> &About {
        &self.about
    }

    fn failed(&self, e: &dyn std::fmt::Display) -> Error {
        Error::msg(format_args!("the index in {} failed: {e}", self.folder.display()))
    }

    /// Files with the stamps they were indexed at.
    ///
    /// # Errors
    /// The index is broken.
    pub fn files(&self) -> Result<HashMap<String, String>> {
        let mut files = HashMap::new();
        self.each(|document| {
            let text = |field| document.get_first(field).and_then(|v| v.as_str()).unwrap_or_default().to_string();
            files.insert(text(self.fields.file), text(self.fields.stamp));
            Ok(())
        })?;
        Ok(files)
    }

    /// Replaces what is known of `file` by these passages, all at once. `stamp` tells later whether the
    /// file has changed. A file without passages keeps its stamp only.
    ///
    /// # Errors
    /// Another program writes to the index, the disk is full.
    ///
    /// # Panics
    /// When there isn't one vector of the right length a passage.
    pub fn put(&self, file: &str, stamp: &str, passages: &[Passage], vectors: &[Vec<f32>]) -> Result<()> {
        assert_eq!(passages.len(), vectors.len(), "a vector a passage");
        assert!(vectors.iter().all(|v| v.len() == self.about.dim), "vectors of {} values", self.about.dim);
        let f = self.fields;
        let mut writer: IndexWriter = self.inner.writer_with_num_threads(1, WRITER).map_err(|e| match e {
            tantivy::TantivyError::LockFailure(..) => Error::msg(format_args!(
                "{}: another program is writing to this index; wait for it",
                self.folder.display()
            )),
            e => self.failed(&e),
        })?;
        writer.delete_term(Term::from_field_text(f.file, file));
        let nothing = [Passage { place: Place::Line(0), text: String::new() }];
        let nowhere = [Vec::new()];
        let (passages, vectors) = if passages.is_empty() { (&nothing[..], &nowhere[..]) } else { (passages, vectors) };
        for (passage, vector) in passages.iter().zip(vectors) {
            let mut document = TantivyDocument::new();
            document.add_text(f.file, file);
            document.add_text(f.stamp, stamp);
            match passage.place {
                Place::Line(line) => document.add_u64(f.line, line),
                Place::Time(time) => document.add_f64(f.time, time),
            }
            document.add_text(f.text, &passage.text);
            let bytes: Vec<u8> = vector.iter().flat_map(|v| v.to_le_bytes()).collect();
            document.add_bytes(f.vector, &bytes);
            writer.add_document(document).map_err(|e| self.failed(&e))?;
        }
        writer.commit().map_err(|e| self.failed(&e))?;
        writer.wait_merging_threads().map_err(|e| self.failed(&e))
    }

    /// Shows every passage, and the marks of files without any.
    fn each(&self, mut show: impl FnMut(&TantivyDocument) -> Result<()>) -> Result<()> {
        let searcher = self.inner.reader().map_err(|e| self.failed(&e))?.searcher();
        for segment in searcher.segment_readers() {
            let store = segment.get_store_reader(1).map_err(|e| self.failed(&e))?;
            for document in store.iter::<TantivyDocument>(segment.alive_bitset()) {
                show(&document.map_err(|e| self.failed(&e))?)?;
            }
        }
        Ok(())
    }

    /// The passages that answer a question best: by its words (BM25) and by the cosine of its vector with
    /// every passage's, the two rankings fused.
    ///
    /// # Errors
    /// The vector is not of the index's model, or the index is broken.
    pub fn search(&self, question: &str, vector: &[f32], most: usize) -> Result<Vec<Hit>> {
        if vector.len() != self.about.dim {
            bail!("the question has {} dimensions, the index {}", vector.len(), self.about.dim);
        }
        let mut near: Vec<Hit> = Vec::new();
        self.each(|document| {
            let hit = self.hit(document, vector);
            if hit.text.is_empty() || near.len() == CANDIDATES && near[CANDIDATES - 1].cosine >= hit.cosine {
                return Ok(());
            }
            let at = near.partition_point(|other| other.cosine >= hit.cosine);
            near.insert(at, hit);
            near.truncate(CANDIDATES);
            Ok(())
        })?;
        let searcher = self.inner.reader().map_err(|e| self.failed(&e))?.searcher();
        let parser = QueryParser::for_index(&self.inner, vec![self.fields.text]);
        // Words only: what would be the query language's signs is a question's punctuation.
        let words: String = question.chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
        let (query, _) = parser.parse_query_lenient(&words.to_lowercase());
        let top = TopDocs::with_limit(CANDIDATES).order_by_score();
        let worded = searcher.search(&query, &top).map_err(|e| self.failed(&e))?;
        let mut hits = Vec::new();
        for (rank, (_, address)) in worded.into_iter().enumerate() {
            let document: TantivyDocument = searcher.doc(address).map_err(|e| self.failed(&e))?;
            let hit = self.hit(&document, vector);
            hits.push(Hit { score: 1.0 / (RANK + 1.0 + rank as f32), ..hit });
        }
        for (rank, hit) in near.into_iter().enumerate() {
            let score = 1.0 / (RANK + 1.0 + rank as f32);
            let same = |h: &&mut Hit| h.file == hit.file && h.place == hit.place && h.text == hit.text;
            match hits.iter_mut().find(same) {
                Some(known) => known.score += score,
                None => hits.push(Hit { score, ..hit }),
            }
        }
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.cosine.total_cmp(&a.cosine)));
        hits.truncate(most);
        Ok(hits)
    }

    fn hit(&self, document: &TantivyDocument, question: &[f32]) -> Hit {
        let f = self.fields;
        let text = |field| document.get_first(field).and_then(|v| v.as_str()).unwrap_or_default().to_string();
        let place = match document.get_first(f.time).and_then(|v| v.as_f64()) {
            Some(time) => Place::Time(time),
            None => Place::Line(document.get_first(f.line).and_then(|v| v.as_u64()).unwrap_or(0)),
        };
        let bytes = document.get_first(f.vector).and_then(|v| v.as_bytes()).unwrap_or_default();
        let (mut dot, mut own, mut other) = (0.0_f32, 0.0_f32, 0.0_f32);
        for (b, q) in bytes.as_chunks::<4>().0.iter().zip(question) {
            let v = f32::from_le_bytes(*b);
            (dot, own, other) = (dot + v * q, own + v * v, other + q * q);
        }
        let lengths = (own * other).sqrt();
        let cosine = if lengths > 0.0 { dot / lengths } else { 0.0 };
        Hit { file: text(f.file), place, text: text(f.text), score: 0.0, cosine }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(line: u64, text: &str) -> Passage {
        Passage { place: Place::Line(line), text: text.into() }
    }

    #[test]
    fn passages_are_found_by_word_and_by_meaning_and_replaced_with_their_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = About::new("tiny", 2);
        let index = Index::create(&folder.path().join("i"), &about).expect("an index");
        index
            .put(
                "a.txt",
                "1",
                &[passage(1, "The kettle boils."), passage(9, "A train leaves.")],
                &[vec![1.0, 0.0], vec![0.0, 1.0]],
            )
            .expect("written");
        let hits = index.search("kettle?", &[0.0, 1.0], 5).expect("hits");
        let texts: Vec<&str> = hits.iter().map(|h| h.text.as_str()).collect();
        // The first by word and second by meaning has two ranks, as has no other.
        assert_eq!(texts, ["The kettle boils.", "A train leaves."]);
        assert_eq!(hits[1].cosine, 1.0);
        index.put("a.txt", "2", &[passage(1, "Rain.")], &[vec![0.6, 0.8]]).expect("written");
        index.put("empty.txt", "3", &[], &[]).expect("written");
        let again = Index::create(&folder.path().join("i"), &about).expect("the same index");
        let hits = again.search("kettle", &[1.0, 0.0], 5).expect("hits");
        assert_eq!(hits.iter().map(|h| h.text.as_str()).collect::<Vec<_>>(), ["Rain."]);
        let mut files: Vec<(String, String)> = again.files().expect("files").into_iter().collect();
        files.sort();
        assert_eq!(files, [("a.txt".into(), "2".into()), ("empty.txt".into(), "3".into())]);
    }

    #[test]
    fn what_was_not_committed_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = About::new("tiny", 1);
        let index = Index::create(folder.path(), &about).expect("an index");
        index.put("a", "1", &[passage(1, "whole")], &[vec![1.0]]).expect("written");
        let writer: IndexWriter = index.inner.writer_with_num_threads(1, WRITER).expect("a writer");
        let mut half = TantivyDocument::new();
        half.add_text(index.fields.text, "half");
        half.add_text(index.fields.file, "b");
        writer.add_document(half).expect("added");
        // As if the program were killed here: nothing of it is committed.
        drop(writer);
        let files = Index::open(folder.path()).expect("opens").files().expect("files");
        assert_eq!(files.into_iter().collect::<Vec<_>>(), [("a".into(), "1".into())]);
    }

    #[test]
    fn a_kill_while_it_is_made_leaves_an_index_or_a_place_for_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = About::new("tiny", 1);
        std::fs::write(folder.path().join(format!("{ABOUT}.part")), "{").expect("written");
        drop(Index::create(folder.path(), &about).expect("an index"));
        std::fs::remove_dir_all(folder.path().join("text")).expect("removed");
        assert!(Index::open(folder.path()).expect("opens").files().expect("files").is_empty());
        // Some of the files of the empty index are there, but not the one that names them.
        std::fs::remove_file(folder.path().join("text/meta.json")).expect("removed");
        let index = Index::create(folder.path(), &about).expect("the index");
        index.put("a", "1", &[passage(1, "whole")], &[vec![1.0]]).expect("written");
        assert_eq!(Index::open(folder.path()).expect("opens").files().expect("files").len(), 1);
    }

    #[test]
    fn other_folders_and_other_models_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("i");
        assert!(Index::open(&path).err().expect("none").to_string().contains("no index"));
        Index::create(&path, &About::new("one", 3)).expect("made");
        let other = Index::create(&path, &About::new("two", 3)).err().expect("refused").to_string();
        assert!(other.contains("made with one"), "{other}");
        std::fs::write(folder.path().join("x"), "x").expect("written");
        assert!(Index::create(folder.path(), &About::new("one", 3)).is_err(), "a folder with other things");
    }
}
