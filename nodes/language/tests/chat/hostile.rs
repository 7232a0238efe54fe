//! Templates that mean harm: one clear error, soon.

use oxiline_language::chat::ChatTemplate;
use serde_json::{Map, json};

use crate::chat;

fn error(source: &str) -> String {
    match ChatTemplate::from_source(source, Map::new()) {
        Err(e) => e.to_string(),
        Ok(template) => match template.render(&chat(json!([{"role": "user", "content": "hi"}])), true) {
            Err(e) => e.to_string(),
            Ok(prompt) => panic!("{source:.80} made {} bytes", prompt.len()),
        },
    }
}

#[test]
fn endless_work_ends() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'x' * 999999999999 }}",
        "{{ ['x'] * 999999999 }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ ('x' * 9999999) | replace('x', 'x' * 9999999) }}",
        "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ 'a\nb' | indent(9999999999) }}",
        "{{ (range(99999) | list | tojson) * 99999 }}",
        "{{ range(9999999999) }}",
        "{{ [range(99999) | list] | tojson(indent=9999999) | length }}{% for a in range(99999) %}{{ range(99999) | list | tojson }}{% endfor %}",
        "{{ 9 ** 999999999 }}",
        "{% for a in range(99999) %}{{ raise_exception }}{{ range(99999) | sum }}{% endfor %}",
        "{% for a in range(99999) %}{{ messages | string }}{{ range(9999) | list | string }}{% endfor %}",
        "{% for a in range(99999) %}{{ ('x' * 999999) | trim | length }}{{ ('x' * 999999).strip('y') | length }}{% endfor %}",
    ] {
        eprintln!("-> {source:.100}");
        let from = std::time::Instant::now();
        let message = error(source);
        eprintln!("{:5} ms {source:.60}: {message}", from.elapsed().as_millis());
        assert!(message.len() < 400 && !message.contains('\n'), "{message}");
    }
}

#[test]
fn depth_ends() {
    let brackets = |n: usize| format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n));
    let parens = format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000));
    let ifs = format!("{}{}", "{% if true %}".repeat(9_000), "{% endif %}".repeat(9_000));
    let nots = format!("{{{{ {}x }}}}", "not ".repeat(50_000));
    let deep = |end: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for a in range(99999) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}{end}"
        )
    };
    for source in [
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_string(),
        "{% macro f(x) %}{{ g(x) }}{% endmacro %}{% macro g(x) %}{{ f([x, x]) }}{% endmacro %}{{ f(1) }}".to_string(),
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_string(),
        brackets(50_000),
        parens,
        ifs,
        nots,
        deep("{{ ns.x }}"),
        deep("{{ ns.x | tojson }}"),
        deep("{{ ns.x | string }}"),
        deep("{{ ns.x ~ '' }}{{ raise_exception('end') }}"),
        deep("{{ ns.x == [ns.x] }}{{ raise_exception('end') }}"),
        deep("{{ ns.x | pprint }}{{ raise_exception('end') }}"),
        deep("{{ raise_exception('end') }}"),
    ] {
        let from = std::time::Instant::now();
        eprintln!("-> {source:.200}");
        let message = error(&source);
        eprintln!("{:5} ms {source:.60}: {message}", from.elapsed().as_millis());
        assert!(message.len() < 400 && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_template_reaches_nothing_outside() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'other' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ self.__init__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ] {
        let message = error(source);
        assert!(message.len() < 400, "{message}");
    }
    let big = "x".repeat((1 << 20) + 1);
    assert!(error(&big).contains("more than the 1048576"));
}
