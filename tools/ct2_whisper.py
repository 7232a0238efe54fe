"""CTranslate2's float16 Whisper files to the layout of a hub repository.

The weights are the same half floats in the same order; only tensors that CTranslate2 fuses (the
query, key and value projections) are cut apart again. Standard library only, and the same
input always gives the same bytes.
"""
import json
import struct

ANY_HEAD = 64  # width of an attention head in every Whisper model
HALF = 4       # CTranslate2's number for float16


class Unusable(Exception):
    """The input isn't a float16 Whisper model of CTranslate2."""


class Cursor:
    """Reads little-endian fields of a binary file that ends where it ends."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        if self.at + size > len(self.data):
            raise Unusable(f"model.bin ends at byte {len(self.data)}, inside a field that starts at {self.at}")
        self.at += size
        return self.data[self.at - size:self.at]

    def int(self, size):
        return int.from_bytes(self.take(size), "little")

    def text(self):
        return bytes(self.take(self.int(2))).rstrip(b"\0").decode()


def read_tensors(data):
    """Name -> (shape, bytes) of every variable in a model.bin."""
    cursor = Cursor(memoryview(data))
    if (version := cursor.int(4)) != 6:
        raise Unusable(f"model.bin has format version {version}; 6 is known")
    if (spec := cursor.text()) != "WhisperSpec":
        raise Unusable(f"model.bin holds a {spec}, not a WhisperSpec")
    cursor.int(4)
    found = {}
    for _ in range(cursor.int(4)):
        name = cursor.text()
        shape = [cursor.int(4) for _ in range(cursor.int(1))]
        kind, size = cursor.int(1), cursor.int(4)
        found[name] = (kind, shape, cursor.take(size))
    return found


def pick(tensors, name):
    if name not in tensors:
        raise Unusable(f"model.bin has no variable {name}")
    kind, shape, data = tensors[name]
    if kind != HALF:
        raise Unusable(f"{name} isn't float16: quantised models can't be converted")
    return shape, data


def layers(tensors, side):
    found = {int(part[6:]) for part in (name.split("/")[1] for name in tensors if name.startswith(side + "/"))
             if part.startswith("layer_") and part[6:].isdigit()}
    if found != set(range(len(found))) or not found:
        raise Unusable(f"the layers of the {side} have gaps")
    return len(found)


# Where each piece of a layer goes. {S} is the layer's place in CTranslate2, {D} in the hub's
# layout. A list of targets cuts the tensor into equal parts; None marks the bias of a key
# projection, which Whisper doesn't have and CTranslate2 stores as zeros.
NORM = [("gamma", "weight"), ("beta", "bias")]
LINEAR = [("weight", "weight"), ("bias", "bias")]


def plan_layer(source, target, has_cross):
    def pairs(names, inner, outer):
        return [(f"{source}/{inner}/{a}", [f"{target}.{outer}.{b}"]) for a, b in names]

    def fused(inner, attention, letters):
        prefix = f"{target}.{attention}"
        yield f"{source}/{inner}/weight", [f"{prefix}.{x}_proj.weight" for x in letters]
        yield f"{source}/{inner}/bias", [None if x == "k" else f"{prefix}.{x}_proj.bias" for x in letters]

    yield from pairs(NORM, "self_attention/layer_norm", "self_attn_layer_norm")
    yield from fused("self_attention/linear_0", "self_attn", "qkv")
    yield from pairs(LINEAR, "self_attention/linear_1", "self_attn.out_proj")
    if has_cross:
        yield from pairs(NORM, "attention/layer_norm", "encoder_attn_layer_norm")
        yield from pairs(LINEAR, "attention/linear_0", "encoder_attn.q_proj")
        yield from fused("attention/linear_1", "encoder_attn", "kv")
        yield from pairs(LINEAR, "attention/linear_2", "encoder_attn.out_proj")
    yield from pairs(NORM, "ffn/layer_norm", "final_layer_norm")
    yield from pairs(LINEAR, "ffn/linear_0", "fc1")
    yield from pairs(LINEAR, "ffn/linear_1", "fc2")


def plan(tensors):
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            yield f"encoder/{conv}/{part}", [f"model.encoder.{conv}.{part}"]
    yield "decoder/embeddings/weight", ["model.decoder.embed_tokens.weight"]
    for side in ("encoder", "decoder"):
        yield f"{side}/position_encodings/encodings", [f"model.{side}.embed_positions.weight"]
        for i in range(layers(tensors, side)):
            yield from plan_layer(f"{side}/layer_{i}", f"model.{side}.layers.{i}", side == "decoder")
        for a, b in NORM:
            yield f"{side}/layer_norm/{a}", [f"model.{side}.layer_norm.{b}"]


def weights(tensors):
    """The hub's tensors: name -> (shape, bytes)."""
    out = {}
    for source, targets in plan(tensors):
        shape, data = pick(tensors, source)
        size = len(data) // len(targets)
        for i, target in enumerate(targets):
            piece = data[i * size:(i + 1) * size]
            if target is not None:
                out[target] = ([shape[0] // len(targets), *shape[1:]], piece)
            elif any(piece):
                raise Unusable(f"{source}: the key's bias isn't zero")
    return out


def save_safetensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        shape, data = tensors[name]
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [end, end := end + len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust((len(text) + 7) // 8 * 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for name in sorted(tensors):
            out.write(tensors[name][1])


def configs(tensors, settings, tokenizer):
    """The hub's JSON files: file name -> value."""
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab, width = pick(tensors, "decoder/embeddings/weight")[0]
    mels = pick(tensors, "encoder/conv1/weight")[0][1]
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    last_control = ids["<|notimestamps|>"]
    control = sorted((t for t, i in ids.items() if i <= last_control), key=ids.get)

    def rows(name):
        return pick(tensors, name)[0][0]

    shape = {"d_model": width, "num_mel_bins": mels, "vocab_size": vocab,
             "max_source_positions": rows("encoder/position_encodings/encodings"),
             "max_target_positions": rows("decoder/position_encodings/encodings"),
             "num_hidden_layers": layers(tensors, "encoder")}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers(tensors, side), f"{side}_attention_heads": width // ANY_HEAD,
                  f"{side}_ffn_dim": rows(f"{side}/layer_0/ffn/linear_0/weight"), f"{side}_layerdrop": 0.0}
    shared = {"begin_suppress_tokens": settings["suppress_ids_begin"], "suppress_tokens": settings["suppress_ids"],
              "bos_token_id": 50257, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start,
              "max_length": 448}
    config = shared | shape | {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "activation_function": "gelu",
        "activation_dropout": 0.0, "attention_dropout": 0.0, "dropout": 0.0, "init_std": 0.02,
        "is_encoder_decoder": True, "scale_embedding": False, "tie_word_embeddings": True,
        "torch_dtype": "float16", "use_cache": True}
    # `is_multilingual` as OpenAI's own code decides it.
    multilingual = vocab >= 51865
    generation = shared | {
        "_from_model_config": False, "alignment_heads": settings["alignment_heads"],
        "is_multilingual": multilingual, "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": last_control, "prev_sot_token_id": ids["<|startofprev|>"],
        "return_timestamps": False}
    generation = dict(sorted(generation.items()))
    if multilingual:
        wanted = set(settings.get("lang_ids", []))
        generation["lang_to_id"] = {t: i for t, i in ids.items() if i in wanted}
        generation["task_to_id"] = {t: ids[f"<|{t}|>"] for t in ("transcribe", "translate")}
    ends = {f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "pad", "unk")}
    special = {"additional_special_tokens": control} | ends
    return {
        "config.json": dict(sorted(config.items())),
        "generation_config.json": generation,
        "preprocessor_config.json": {
            "chunk_length": 30, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": mels,
            "hop_length": 160, "n_fft": 400, "n_samples": 480000, "nb_max_frames": 3000,
            "padding_side": "right", "padding_value": 0.0, "processor_class": "WhisperProcessor",
            "return_attention_mask": False, "sampling_rate": 16000},
        "vocab.json": tokenizer["model"]["vocab"],
        "added_tokens.json": ids,
        "special_tokens_map.json": special,
        "tokenizer_config.json": {
            "add_bos_token": False, "additional_special_tokens": control, "add_prefix_space": False,
            **dict(sorted((ends | {
                "clean_up_tokenization_spaces": False, "errors": "replace", "model_max_length": 1024,
                "processor_class": "WhisperProcessor", "return_attention_mask": False,
                "tokenizer_class": "WhisperTokenizer"}).items()))},
    }


def convert(source, target):
    """Reads model.bin, config.json and tokenizer.json in `source`, writes a model into `target`."""
    try:
        tensors = read_tensors((source / "model.bin").read_bytes())
        settings = json.loads((source / "config.json").read_bytes())
        raw = (source / "tokenizer.json").read_bytes()
        tokenizer = json.loads(raw)
        save_safetensors(target / "model.safetensors", weights(tensors))
        for name, value in configs(tensors, settings, tokenizer).items():
            text = json.dumps(value, indent=2, ensure_ascii=False)
            (target / name).write_text(text + "\n", encoding="utf-8")
        merges = (m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"])
        (target / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
        (target / "tokenizer.json").write_bytes(raw)
    except (KeyError, ValueError, TypeError) as error:
        raise Unusable(f"the source isn't a CTranslate2 Whisper model: {error!r}") from error
