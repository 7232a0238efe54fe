//! Request and reply types of model actors: where siblings meet without knowing each other.

pub mod embed;
pub mod llm;
pub mod speech;
