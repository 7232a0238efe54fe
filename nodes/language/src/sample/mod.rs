//! From logits to tokens: filters, penalties, seeds, grammars, stop strings.
