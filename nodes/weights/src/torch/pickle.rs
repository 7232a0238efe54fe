//! A pickle machine that can build a state dict and nothing else.
//!
//! Values live in one arena and refer to each other by index: depth costs no stack, cycles cost
//! nothing, and memory is bounded by the length of the pickle. Calls exist only as a few known
//! names whose result is plain data; any other name or opcode ends the reading.

use std::collections::HashMap;

use crate::checkpoint::MAX_RANK;
use crate::dtype::Dtype;
use crate::error::{Error, Result, shown};

/// Most values a pickle may make.
const MAX_VALUES: usize = 1 << 20;
/// Deepest nesting of a dictionary that is searched for tensors.
const MAX_DEPTH: usize = 24;
/// Most bytes all names of tensors together may take.
const MAX_NAMES: usize = 32 << 20;

/// Index of a value.
pub(super) type Id = usize;

#[derive(Debug, Clone)]
enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Little-endian two's complement, for what doesn't fit in 64 bits.
    Long(&'a [u8]),
    Text(&'a str),
    /// Data that never makes a tensor (floats, bytes).
    Other,
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict {
        ordered: bool,
        items: Vec<(Id, Id)>,
    },
    Name(Name),
    Storage {
        dtype: Dtype,
        key: Id,
        numel: usize,
    },
    Tensor(Box<Tensor>),
}

#[derive(Debug, Clone, Copy)]
enum Name {
    OrderedDict,
    Size,
    Tensor,
    Parameter,
    Storage(Dtype),
}

/// A tensor as the pickle describes it; nothing is checked against its storage yet.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub dtype: Dtype,
    /// Name of the storage.
    pub key: String,
    /// Elements of the whole storage.
    pub numel: usize,
    /// First element.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

fn known(module: &str, name: &str) -> Option<Name> {
    let dtype = match (module, name) {
        ("collections", "OrderedDict") => return Some(Name::OrderedDict),
        ("torch", "Size") => return Some(Name::Size),
        ("torch._utils", "_rebuild_tensor_v2" | "_rebuild_tensor") => return Some(Name::Tensor),
        ("torch._utils", "_rebuild_parameter") => return Some(Name::Parameter),
        ("torch", "FloatStorage") => Dtype::F32,
        ("torch", "DoubleStorage") => Dtype::F64,
        ("torch", "HalfStorage") => Dtype::F16,
        ("torch", "BFloat16Storage") => Dtype::BF16,
        ("torch", "LongStorage") => Dtype::I64,
        ("torch", "IntStorage") => Dtype::I32,
        ("torch", "ShortStorage") => Dtype::I16,
        ("torch", "CharStorage") => Dtype::I8,
        ("torch", "ByteStorage") => Dtype::U8,
        ("torch", "BoolStorage") => Dtype::Bool,
        _ => return None,
    };
    Some(Name::Storage(dtype))
}

pub(super) struct Machine<'a> {
    code: &'a [u8],
    /// Where `code` starts in the file, for messages.
    base: usize,
    at: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(code: &'a [u8], base: usize) -> Self {
        Self { code, base, at: 0, values: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() }
    }

    /// Bytes read.
    pub(super) fn consumed(&self) -> usize {
        self.at
    }

    fn bad(&self, what: impl std::fmt::Display) -> Error {
        Error::malformed(format!("broken pickle near byte {}: {what}", self.base + self.at))
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let code = self.code;
        let end = self.at.checked_add(size).filter(|end| *end <= code.len());
        let end = end.ok_or_else(|| self.bad("it ends early; download the file again"))?;
        let out = &code[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn number<const N: usize>(&mut self) -> Result<u64> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(self.take(N)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn sized<const N: usize>(&mut self) -> Result<&'a [u8]> {
        let size = self.number::<N>()?;
        self.take(usize::try_from(size).unwrap_or(usize::MAX))
    }

    fn text(&mut self, bytes: &'a [u8]) -> Result<Value<'a>> {
        std::str::from_utf8(bytes).map(Value::Text).map_err(|_| self.bad("a text is not UTF-8"))
    }

    fn push(&mut self, value: Value<'a>) -> Result<()> {
        if self.values.len() >= MAX_VALUES {
            return Err(self.bad(format!("more than {MAX_VALUES} values; this is no state dict")));
        }
        self.stack.push(self.values.len());
        self.values.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => Err(self.bad("its stack is empty")),
        }
    }

    fn top(&self) -> Result<Id> {
        self.stack.last().copied().ok_or_else(|| self.bad("its stack is empty"))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.bad("a mark is missing"))?;
        Ok(self.stack.split_off(mark))
    }

    /// Runs to the STOP and returns the value made.
    pub(super) fn run(&mut self) -> Result<Id> {
        loop {
            let op = self.take(1)?[0];
            match op {
                b'.' => return self.pop(),
                0x80 => {
                    let version = self.take(1)?[0];
                    if !(2..=5).contains(&version) {
                        return Err(self.bad(format!("protocol {version}; 2 to 5 are read")));
                    }
                }
                0x95 => {
                    let size = self.number::<8>()?;
                    if size > (self.code.len() - self.at) as u64 {
                        return Err(self.bad("a frame reaches past the end"));
                    }
                }
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.pop_to_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.stack.push(top);
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'K' => {
                    let v = self.number::<1>()?;
                    self.push(Value::Int(v as i64))?;
                }
                b'M' => {
                    let v = self.number::<2>()?;
                    self.push(Value::Int(v as i64))?;
                }
                b'J' => {
                    let v = self.number::<4>()? as u32;
                    self.push(Value::Int(i64::from(v.cast_signed())))?;
                }
                0x8a => {
                    let bytes = self.sized::<1>()?;
                    self.push(long(bytes))?;
                }
                0x8b => {
                    let bytes = self.sized::<4>()?;
                    self.push(long(bytes))?;
                }
                b'G' => {
                    self.take(8)?;
                    self.push(Value::Other)?;
                }
                b'X' | b'T' => {
                    let bytes = self.sized::<4>()?;
                    let text = self.text(bytes)?;
                    self.push(text)?;
                }
                0x8c | b'U' => {
                    let bytes = self.sized::<1>()?;
                    let text = self.text(bytes)?;
                    self.push(text)?;
                }
                0x8d => {
                    let bytes = self.sized::<8>()?;
                    let text = self.text(bytes)?;
                    self.push(text)?;
                }
                b'C' => {
                    self.sized::<1>()?;
                    self.push(Value::Other)?;
                }
                b'B' => {
                    self.sized::<4>()?;
                    self.push(Value::Other)?;
                }
                0x8e => {
                    self.sized::<8>()?;
                    self.push(Value::Other)?;
                }
                b')' => self.push(Value::Tuple(Vec::new()))?,
                b']' => self.push(Value::List(Vec::new()))?,
                b'}' => self.push(Value::Dict { ordered: false, items: Vec::new() })?,
                0x85..=0x87 => {
                    let mut items = (0x85..=op).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
                    items.reverse();
                    self.push(Value::Tuple(items))?;
                }
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items))?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.pop_to_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.set(items)?;
                }
                b'q' => {
                    let slot = self.number::<1>()?;
                    self.put(slot)?;
                }
                b'r' => {
                    let slot = self.number::<4>()?;
                    self.put(slot)?;
                }
                0x94 => self.put(self.memo.len() as u64)?,
                b'h' => {
                    let slot = self.number::<1>()?;
                    self.get(slot)?;
                }
                b'j' => {
                    let slot = self.number::<4>()?;
                    self.get(slot)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.name(module, name)?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let (Value::Text(module), Value::Text(name)) = (&self.values[module], &self.values[name]) else {
                        return Err(self.bad("a name is not a text"));
                    };
                    self.name(module, name)?;
                }
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                b'b' => self.build()?,
                _ => return Err(refused_opcode(op, self.base + self.at - 1)),
            }
        }
    }

    fn line(&mut self) -> Result<&'a str> {
        let rest = &self.code[self.at..];
        let size = rest.iter().take(256).position(|b| *b == b'\n').ok_or_else(|| self.bad("a name without end"))?;
        self.at += size + 1;
        std::str::from_utf8(&rest[..size]).map_err(|_| self.bad("a name is not UTF-8"))
    }

    fn put(&mut self, slot: u64) -> Result<()> {
        let id = self.top()?;
        self.memo.insert(slot as u32, id);
        Ok(())
    }

    fn get(&mut self, slot: u64) -> Result<()> {
        let id = self.memo.get(&(slot as u32)).copied().ok_or_else(|| self.bad(format!("memo {slot} is empty")))?;
        self.stack.push(id);
        Ok(())
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        let list = self.top()?;
        match &mut self.values[list] {
            Value::List(list) => list.extend(items),
            _ => return Err(self.bad("appends to something that is no list")),
        }
        Ok(())
    }

    fn set(&mut self, items: Vec<Id>) -> Result<()> {
        let dict = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match &mut self.values[dict] {
            Value::Dict { items, .. } if rest.is_empty() => items.extend(pairs.iter().map(|[k, v]| (*k, *v))),
            _ => return Err(self.bad("sets items of something that is no dictionary")),
        }
        Ok(())
    }

    fn name(&mut self, module: &str, name: &str) -> Result<()> {
        match known(module, name) {
            Some(known) => self.push(Value::Name(known)),
            None => Err(Error::unsupported(format!(
                "the pickle asks for {}.{} near byte {}, which a state dict does not need; nothing was run, \
                 but do not trust this file: take the safetensors version, or save only the state_dict",
                shown(module),
                shown(name),
                self.base + self.at
            ))),
        }
    }

    /// `('storage', type, name, place, elements[, view])`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let made = match &self.values[id] {
            Value::Tuple(items) if items.len() == 5 || items.len() == 6 => {
                let v = |i: usize| &self.values[items[i]];
                match (v(0), v(1), v(2), v(4)) {
                    (Value::Text("storage"), Value::Name(Name::Storage(dtype)), Value::Text(_), Value::Int(numel))
                        if items.len() == 5 || matches!(v(5), Value::None) =>
                    {
                        usize::try_from(*numel).ok().map(|numel| Value::Storage { dtype: *dtype, key: items[2], numel })
                    }
                    _ => None,
                }
            }
            _ => None,
        };
        let made = made.ok_or_else(|| self.bad("a reference that is no storage of a known type"))?;
        self.push(made)
    }

    fn call(&mut self) -> Result<()> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let (Value::Name(name), Value::Tuple(arguments)) = (&self.values[callee], &self.values[arguments]) else {
            return Err(self.bad("calls something that is no known constructor"));
        };
        let first = arguments.first().copied();
        let made = match name {
            Name::OrderedDict if arguments.is_empty() => Some(Value::Dict { ordered: true, items: Vec::new() }),
            Name::Size => Some(Value::Other),
            Name::Tensor => self.tensor(arguments).map(|t| Value::Tensor(Box::new(t))),
            // A parameter is its tensor.
            Name::Parameter => match first {
                Some(id) if matches!(self.values[id], Value::Tensor(_)) => {
                    self.stack.push(id);
                    return Ok(());
                }
                _ => None,
            },
            _ => None,
        };
        let made = made.ok_or_else(|| self.bad(format!("{name:?} is made from the wrong arguments")))?;
        self.push(made)
    }

    fn tensor(&self, arguments: &[Id]) -> Option<Tensor> {
        let [storage, offset, shape, strides, ..] = arguments else { return None };
        let Value::Storage { dtype, key, numel } = self.values[*storage] else { return None };
        let Value::Text(key) = self.values[key] else { return None };
        let sizes = |id: Id| match &self.values[id] {
            Value::Tuple(items) if items.len() <= MAX_RANK => items.iter().map(|i| self.size(*i)).collect(),
            _ => None,
        };
        let (shape, strides): (Vec<usize>, Vec<usize>) = (sizes(*shape)?, sizes(*strides)?);
        let offset = self.size(*offset)?;
        (shape.len() == strides.len()).then(|| Tensor { dtype, key: key.into(), numel, offset, shape, strides })
    }

    fn size(&self, id: Id) -> Option<usize> {
        self.int(id).and_then(|v| usize::try_from(v).ok())
    }

    /// Attributes of a module's state dict (`_metadata`) are dropped; nothing else has any.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        let harmless = match (&self.values[target], &self.values[state]) {
            (Value::Dict { ordered: true, .. }, Value::Dict { ordered: false, items }) => {
                items.iter().all(|(key, _)| matches!(self.values[*key], Value::Text("_metadata")))
            }
            _ => false,
        };
        if harmless { Ok(()) } else { Err(self.bad("sets attributes a state dict does not have")) }
    }

    /// A whole number.
    pub(super) fn int(&self, id: Id) -> Option<i64> {
        if let Value::Int(v) = self.values[id] { Some(v) } else { None }
    }

    /// Bytes of a number beyond 64 bits.
    pub(super) fn long(&self, id: Id) -> Option<&'a [u8]> {
        if let Value::Long(v) = self.values[id] { Some(v) } else { None }
    }

    /// A truth value in a dictionary.
    pub(super) fn field(&self, dict: Id, name: &str) -> Option<bool> {
        let Value::Dict { items, .. } = &self.values[dict] else { return None };
        let (_, value) = items.iter().find(|(k, _)| matches!(self.values[*k], Value::Text(t) if t == name))?;
        if let Value::Bool(b) = self.values[*value] { Some(b) } else { None }
    }

    /// A list of texts.
    pub(super) fn strings(&self, id: Id) -> Option<Vec<String>> {
        let Value::List(items) = &self.values[id] else { return None };
        items.iter().map(|i| if let Value::Text(t) = self.values[*i] { Some(t.to_string()) } else { None }).collect()
    }

    /// Every tensor under `top`; names of nested containers are joined with dots.
    pub(super) fn tensors(&mut self, top: Id) -> Result<Vec<(String, Tensor)>> {
        let mut out = Vec::new();
        let mut names = std::collections::HashSet::new();
        let (mut visits, mut bytes) = (0usize, 0usize);
        let mut open = vec![(top, String::new(), 0usize)];
        while let Some((id, name, depth)) = open.pop() {
            let children: Vec<(Id, String)> = match &self.values[id] {
                Value::Tensor(t) => {
                    if !names.insert(name.clone()) {
                        return Err(Error::malformed(format!("tensor {} is there twice", shown(&name))));
                    }
                    out.push((name, Tensor::clone(t)));
                    continue;
                }
                Value::Dict { items, .. } => items.iter().filter_map(|(k, v)| Some((*v, self.key(*k)?))).collect(),
                Value::List(items) | Value::Tuple(items) => {
                    items.iter().enumerate().map(|(i, v)| (*v, i.to_string())).collect()
                }
                _ => continue,
            };
            visits += children.len();
            if depth >= MAX_DEPTH || visits > MAX_VALUES {
                return Err(Error::malformed("the pickle's containers are nested too deeply for a state dict"));
            }
            for (child, key) in children.into_iter().rev() {
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                bytes += name.len();
                if bytes > MAX_NAMES {
                    return Err(Error::malformed("the names of the pickle's values take too much memory"));
                }
                if matches!(
                    self.values[child],
                    Value::Tensor(_) | Value::Dict { .. } | Value::List(_) | Value::Tuple(_)
                ) {
                    open.push((child, name, depth + 1));
                }
            }
        }
        if out.is_empty() {
            return Err(Error::malformed("the pickle holds no tensors; save the model's state_dict with torch.save"));
        }
        Ok(out)
    }

    fn key(&self, id: Id) -> Option<String> {
        match self.values[id] {
            Value::Text(text) => Some(text.to_string()),
            Value::Int(v) => Some(v.to_string()),
            _ => None,
        }
    }
}

/// A two's-complement number, kept as bytes when it doesn't fit.
fn long(bytes: &[u8]) -> Value<'_> {
    if bytes.len() > 8 {
        return Value::Long(bytes);
    }
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut wide = [if negative { 0xff } else { 0 }; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}

fn refused_opcode(op: u8, at: usize) -> Error {
    let name = match op {
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        0x82..=0x84 => "EXT",
        b'P' => "PERSID",
        b'S' | b'V' | b'I' | b'L' | b'F' | b'p' | b'g' | b'l' | b'd' => "an opcode of protocol 0",
        0x8f => "EMPTY_SET",
        0x96 => "BYTEARRAY8",
        _ => {
            return Error::malformed(format!(
                "the pickle has the unknown opcode {op:#04x} at byte {at}; is it complete?"
            ));
        }
    };
    Error::unsupported(format!(
        "the pickle uses {name} at byte {at}, which a state dict does not need; nothing was run, \
         but do not trust this file: take the safetensors version, or save only the state_dict"
    ))
}
