// Package adopt brings a release of vLLM into a repository that has a compat matrix: its wire profile, its line in
// compat.toml, what is captured of it, and what has to go with the line that leaves the matrix.
//
//	plan, err := adopt.Prepare(adopt.Options{Tree: adopt.FindTree(".", ""), Profile: profile})
//	…
//	err = plan.Write()
//
// Prepare reads and decides, teaches this process the line, and writes nothing. The edits that it plans keep every
// comment, and break no rule of compat, manifest and target that was not broken before. Write puts all of them in
// place, or none.
//
// A release is adopted without a change of code, as a line is data: what cannot be read from its sources, or what no
// codec can be made of, is an [UnfitError], which says what a person has to do.
package adopt
