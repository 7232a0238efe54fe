//! The LLM as a model actor: sessions, batches, prefix cache; and its nodes.
