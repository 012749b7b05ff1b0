// Quantities as the command line writes them (crates/cistern/src/quantity.rs), and what only a page needs.
//
// Whatever is not known (null, undefined, NaN) is a dash, never a zero.

export const UNKNOWN = "–";

const SIZES = [["E", 2 ** 60], ["P", 2 ** 50], ["T", 2 ** 40], ["G", 2 ** 30], ["M", 2 ** 20], ["K", 2 ** 10]];
const TIMES = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]];

export function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Gives a function that writes known values with `write`, and a dash for others. */
function orDash(write) {
  return (value) => (isKnown(value) ? write(value) : UNKNOWN);
}

/** A number with so many decimals; what lies in the middle goes to the even side, as Rust rounds. */
function fixed(value, decimals) {
  const shifted = value * 10 ** decimals;
  const isMiddle = shifted % 1 === 0.5 && Number.isInteger(value * 2 ** (decimals + 1));
  return (isMiddle ? (2 * Math.round(shifted / 2)) / 10 ** decimals : value).toFixed(decimals);
}

/** A number in the largest of `units` that it reaches, with one decimal where it is not whole. */
function scaled(value, units, suffix) {
  const unit = units.find(([, factor]) => value >= factor);
  if (!unit) return null;
  const [name, factor] = unit;
  const number = value % factor === 0 ? value / factor : fixed(value / factor, 1);
  return `${number}${suffix(name)}`;
}

/** A number of bytes: `512 bytes`, `1.5 GiB`. */
export const bytes = orDash((value) => {
  const whole = Math.round(value);
  return scaled(whole, SIZES, (name) => ` ${name}iB`) ?? `${whole} bytes`;
});

export const bytesPerSecond = orDash((value) => `${bytes(value)}/s`);

/** A length of time in milliseconds: `250ms`, `1.5m`. */
export const span = orDash((ms) => scaled(Math.round(ms), TIMES, (name) => name) ?? "0s");

/** An age in seconds, which nobody wants to know to the millisecond. */
export const age = orDash((seconds) => span(seconds < 10 ? seconds * 1000 : Math.floor(seconds) * 1000));

/** A latency in seconds, in three digits: `150us`, `1.50ms`. */
export const latency = orDash((seconds) => {
  const us = Math.round(seconds * 1e6);
  if (us < 1000) return `${us}us`;
  const [value, unit] = us < 1_000_000 ? [us / 1e3, "ms"] : [us / 1e6, "s"];
  return fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0) + unit;
});

/** A count with separators: `1,234,567`. */
export const count = orDash((value) => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ","));

/** Events a second: whole where there are many, with decimals where there are few. */
export const perSecond = orDash((value) => {
  const text = value === 0 || value >= 10 ? count(value) : value.toFixed(value >= 1 ? 1 : 2);
  return `${text}/s`;
});

/** An amount of money: two decimals where that says something, more for what is below a unit. */
export const money = orDash((value) => fixed(value, value === 0 || Math.abs(value) >= 1 ? 2 : 6));

export const ratio = orDash((value) => fixed(value, 2));

export const percent = orDash((value) => `${Math.floor(value)} %`);

/** `a` of `b` in percent; not known where either is not, or where there is nothing to have a part of. */
export function share(a, b) {
  return isKnown(a) && isKnown(b) && b > 0 ? (a / b) * 100 : null;
}

/** `1 client`, `2 clients`. */
export function several(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of day of here, to the second or, for long ranges, to the minute. */
export function timeOfDay(ms, toTheSecond = true) {
  const date = new Date(ms);
  const text = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return toTheSecond ? `${text}:${two(date.getSeconds())}` : text;
}

export function dayAndTime(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${timeOfDay(ms, false)}`;
}
