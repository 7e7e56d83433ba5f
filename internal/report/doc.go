// Package report renders a conformance run for people and for machines.
//
// [New] makes one [Document] of a run, which is what [JSON] writes and [Read]
// reads back without loss. Every other renderer takes the document: [Text] for a
// terminal, [JUnit], [SARIF], [Markdown] for a job summary, [HTML] as one page
// that needs no network, [Annotate] for GitHub and [BadgeOf] for a README.
// [Dir.Write] writes them into a directory. [Merge] makes one document of those
// that a matrix of jobs has left, and [Compare] says what is different between
// two. So a document that was merged, or read back, is rendered like any other.
//
// Renderers write in the document's own order, and equal documents are rendered
// equally. A document that was made with [Meta.Deterministic] holds no time,
// duration, host or temporary path, so that equal runs make equal documents.
//
// Messages carry text that files, engines and frontends wrote. No renderer lets
// it end a line, begin a command to the CI that reads the output, or leave the
// element it is shown in.
package report
