// Package tomlfile reads the project's configuration files strictly, and knows
// the line of everything it read.
//
// A configuration that decides whether a pull request may merge must not be
// guessed at: a misspelt key is an error, a value of the wrong type is an
// error, and each diagnostic names the file and the line it is about, so that it
// can become an annotation on that line. The decoder of
// [github.com/BurntSushi/toml] produces the values, but it stops at the first
// value of a wrong type, matches key names regardless of case, and keeps no
// positions of keys. So every file is first read by the parser of go-toml, which
// has the place of every table, key, array element and comment. The bounds below
// are checked there, before the decoder, whose work grows with the square of a
// key's length, gets the text.
//
// # Use
//
// [Load] or [Parse] returns a [Document]. Its [Document.Root] and the tables
// below it are read by key: [Table.String], [Table.Bool], [Table.Tables] and so
// on. Reading a key declares it: [Document.Diagnostics] reports every key that was not
// asked for, with the nearest declared name as a suggestion. Keys that start
// with x_ belong to the user and are never reported. Rules of the caller add
// their own diagnostics with [Document.Report].
//
// # Bounds
//
// A file has at most 1 MiB; a key with all its parents at most 256 bytes; values
// nest at most 32 deep. Anything larger, anything that is not UTF-8 text, and
// anything that is not a regular file, is a diagnostic.
package tomlfile
