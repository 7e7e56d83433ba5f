package pack

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// here is the path of the value being compared.
func (d *differ) here() string {
	if len(d.stack) == 0 {
		return d.root
	}
	top := d.stack[len(d.stack)-1]
	if top.keys != nil {
		return join(top.path, top.keys.text(d.want, d.got, top.i))
	}
	if d.opt.Names != nil {
		if name := d.opt.Names(top.path, top.i); name != "" {
			return join(top.path, name)
		}
	}
	return top.path + "[" + strconv.Itoa(top.i) + "]"
}

// join appends a field name, or a key already in brackets, to a path.
func join(path, part string) string {
	if path == "" || part[0] == '[' {
		return path + part
	}
	return path + "." + part
}

// keyText is a map key as a part of a path: a plain str bare, anything else in
// brackets, cut like in [Format].
func keyText(b []byte, off int) string {
	h, err := readHead(b, off)
	if err == nil && h.kind == String && isPlain(h.payload(b)) {
		return string(h.payload(b))
	}
	return "[" + formatValue(b, off) + "]"
}

// isPlain reports whether a key can stand in a path without quotes.
func isPlain(p []byte) bool {
	for _, c := range p {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return 0 < len(p) && len(p) <= quoteLimit
}

// excerptSize is how many bytes of a payload an excerpt shows.
const excerptSize = 16

// excerpt shows payload p from byte at on.
func excerpt(k Kind, p []byte, at int) string {
	if at >= len(p) {
		return fmt.Sprintf("ends at byte %d", at)
	}
	if k == String {
		for at > 0 && !utf8.RuneStart(p[at]) {
			at--
		}
		return fmt.Sprintf("from byte %d: %q", at, p[at:min(at+excerptSize, len(p))])
	}
	return fmt.Sprintf("from byte %d: %x", at, p[at:min(at+excerptSize, len(p))])
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
