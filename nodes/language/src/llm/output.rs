use oxiline_graph::protocol::llm::ToolCall;
pub enum Piece {
    Text(String),
    #[allow(dead_code)]
    Thinking(String),
    #[allow(dead_code)]
    ToolCall(ToolCall),
}
#[derive(Clone, Copy, Default)]
pub struct OutputFormat;
impl OutputFormat {
    pub fn of(_source: &str) -> Self {
        Self
    }
    pub fn opened_by(self, _prompt: &str) -> OutputParser {
        OutputParser
    }
}
pub struct OutputParser;
impl OutputParser {
    pub fn marks(&self, _token: &str) -> bool {
        false
    }
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        vec![Piece::Text(text.to_string())]
    }
    pub fn finish(&mut self) -> Vec<Piece> {
        Vec::new()
    }
}
