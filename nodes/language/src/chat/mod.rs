//! Conversations as prompts: the checkpoint's own Jinja template, tool calls, thinking.
