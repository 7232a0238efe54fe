//! Voice activity detection with Silero's 16 kHz network.
