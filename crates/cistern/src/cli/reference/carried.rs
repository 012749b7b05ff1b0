//! What a package carries beside the program: manual pages, completions, and a settings file in which nothing is set.
//!
//! All of it is made from the definitions of the command line, as the pages of the reference are.

use clap::{Arg, ArgAction, Command, CommandFactory, ValueEnum};
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

use super::pages::{ENVIRONMENT, is_shown, line, long_help};
use crate::{
    cli::{Cli, completions::Shell},
    config,
    failure::Kind,
};

/// Width of a line of the settings file.
const COLUMNS: usize = 96;

/// The files: name, content.
pub fn carried() -> Vec<(String, Vec<u8>)> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut files = Vec::new();
    manual(&root, &mut files);
    for shell in Shell::value_variants() {
        files.push((format!("completions/{}", shell.name()), shell.script()));
    }
    files.push(("cistern.toml".to_owned(), settings_file().into_bytes()));
    files
}

/// One page for each command, as `man cistern-snapshot` finds it.
fn manual(command: &Command, files: &mut Vec<(String, Vec<u8>)>) {
    command.get_subcommands().filter(|verb| is_shown(verb)).for_each(|verb| manual(verb, files));
    let man =
        Man::new(command.clone()).manual("cistern").source(concat!("cistern ", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    write_page(&man, command, &mut out).expect("memory takes what is written");
    files.push((format!("man/{}", man.get_filename()), out));
}

fn write_page(man: &Man, command: &Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(is_shown) {
        man.render_subcommands_section(out)?;
    }
    let mut rest = Roff::new();
    if let Some(examples) = command.get_after_help() {
        rest.control("SH", ["EXAMPLES"]).control("nf", []);
        let text = examples.to_string();
        let lines = text.lines().filter(|line| *line != "Examples:");
        lines.for_each(|line| _ = rest.text([roman(line.strip_prefix("  ").unwrap_or(line))]));
        rest.control("fi", []);
    }
    if command.get_name() == "cistern" {
        rest.control("SH", ["EXIT STATUS"]);
        for (_, code, meaning) in Kind::ALL {
            rest.control("TP", []).text([bold(code.to_string())]).text([roman(meaning.to_string())]);
        }
        rest.control("SH", ["ENVIRONMENT"]);
        for (name, meaning) in ENVIRONMENT {
            rest.control("TP", []).text([bold(name.to_string())]).text([roman(meaning.replace('`', ""))]);
        }
    }
    rest.to_writer(out)
}

/// Every setting with what it means, behind a comment sign.
fn settings_file() -> String {
    let mut out = String::from(
        "# Settings of cistern. A flag of the command line wins over what is said here.\n\
         # To set something, take the # before its name away.\n",
    );
    for arg in config::definitions() {
        out.push('\n');
        let name = arg.get_long().expect("every setting has a long name");
        long_help(&arg).split("\n\n").flat_map(wrapped).for_each(|text| line(&mut out, &format!("# {text}")));
        line(&mut out, &format!("#{name} = {}", example(&arg)));
    }
    out.push_str(
        "\n# What the store charges: `cistern cost` shows the table.\n\
         #[prices]\n\
         #kind = \"s3-standard-outside\"\n\
         \n# Commands around every snapshot of `cistern snapshot` and `cistern backup`.\n\
         #[hooks]\n\
         #pre = \"\"\n\
         #post = \"\"\n\
         #timeout = \"2m\"\n",
    );
    out
}

/// A value of the setting, as the file has it: the default where that is a value.
fn example(arg: &Arg) -> String {
    let name = arg.get_long().unwrap_or_default();
    let help = long_help(arg);
    let default =
        help.split_once("[default: ").map(|(_, rest)| rest.trim_end_matches(']')).unwrap_or_default();
    let first = default.split_whitespace().next().unwrap_or_default().trim_end_matches(',');
    let is_value = first.starts_with(|c: char| c == '/' || c.is_ascii_digit());
    let kind = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
    match kind {
        "BOOL" => "false".to_owned(),
        _ if matches!(arg.get_action(), ArgAction::Append) => "[\"127.0.0.1:10809\"]".to_owned(),
        _ if is_value => format!("\"{first}\""),
        "ADDRESS" => "\"127.0.0.1:9809\"".to_owned(),
        "DIR" | "FILE" => {
            format!("\"/etc/cistern/{}\"", name.trim_end_matches("-dir").trim_end_matches("-file"))
        }
        "SIZE" => "\"3G\"".to_owned(),
        "TIME" => "\"30s\"".to_owned(),
        _ => format!("\"{first}\""),
    }
}

/// A paragraph in lines that fit behind a comment sign.
fn wrapped(paragraph: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in paragraph.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.len() + 1 + word.len() <= COLUMNS {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> String {
        let (_, content) = carried().into_iter().find(|(file, _)| file == name).expect("it is carried");
        String::from_utf8(content).expect("text")
    }

    /// The file of a fresh installation sets nothing; with the comment signs before names taken away it sets
    /// everything that can be set, and all of that is valid.
    #[test]
    fn the_settings_file_is_valid_and_complete() {
        let carried = file("cistern.toml");
        let table: toml::Table = toml::from_str(&carried).expect("it is TOML");
        assert!(table.is_empty(), "something is set: {table:?}");
        let taken_away: String = carried
            .lines()
            .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
            .fold(String::new(), |text, line| text + line + "\n");
        let path = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(path.path(), &taken_away).expect("written");
        config::read_file(Some(path.path())).unwrap_or_else(|failure| panic!("{failure:?}\n{taken_away}"));
        let table: toml::Table = toml::from_str(&taken_away).expect("it is TOML");
        for arg in config::definitions() {
            let name = arg.get_long().expect("every setting has a long name");
            assert!(table.contains_key(name), "{name} is missing");
        }
    }

    /// Every command that is shown has a page with its name and its options, and none that is hidden has one.
    #[test]
    fn every_command_has_a_manual_page() {
        let page = file("man/cistern-serve.1");
        assert!(page.contains("journal\\-size"), "{page}");
        assert!(page.contains(".SH NAME\ncistern\\-serve \\- "), "{page}");
        let names: Vec<String> = carried().into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"man/cistern-key-change.1".to_owned()), "{names:?}");
        assert!(!names.contains(&"man/cistern-reference.1".to_owned()), "{names:?}");
        assert!(file("man/cistern.1").contains(".SH \"EXIT STATUS\""), "{}", file("man/cistern.1"));
    }
}
