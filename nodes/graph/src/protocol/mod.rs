//! Request and reply types of model actors: where siblings meet without knowing each other.

pub mod llm;
pub mod speech;
