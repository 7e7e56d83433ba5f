// Package page writes HTML pages that need nothing else, no network and no other file.
//
// A page is a tree of elements that write themselves. All text goes through one escape: what is written as it is has a
// type of its own, [Markup], and is only ever a literal or an embedded file. There is no template: one calls methods by
// name, for which the linker keeps every exported method of the binary.
package page
