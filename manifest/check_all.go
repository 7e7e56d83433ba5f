package manifest

import "fmt"

// checkDuplicates checks that names and contents stand for each other.
func checkDuplicates(entries []entry) {
	ids, digests, paths := make(map[string]*entry), make(map[string]*entry), make(map[string]*entry)
	for i := range entries {
		e := &entries[i]
		name := e.Line + "/" + e.ID
		if first, ok := ids[name]; ok && e.Line != "" && e.ID != "" {
			key := "id"
			if !e.table.Has(key) {
				key = "workload"
			}
			e.fail(codeSameID, key, fmt.Sprintf("line %s has two goldens named %s, the first at line %d of this file", e.Line, e.ID, first.Pos),
				"give one of them an id of its own")
		}
		if first, ok := digests[e.SHA256]; ok && isDigest(e.SHA256) {
			e.fail(codeSameBytes, "sha256", fmt.Sprintf("the same bytes are registered twice, first at line %d of this file", first.Pos),
				"keep one of the two; other locations of it are mirrors")
		}
		if first, ok := paths[e.BucketPath]; ok && e.BucketPath != "" && e.SHA256 != first.SHA256 {
			e.fail(codeSamePath, "bucket_path", fmt.Sprintf("bucket_path has another sha256 at line %d of this file", first.table.LineOf("bucket_path")),
				"one object cannot be both")
		}
		remember(ids, name, e)
		remember(digests, e.SHA256, e)
		remember(paths, e.BucketPath, e)
	}
}

// remember keeps the first entry of a key.
func remember(seen map[string]*entry, key string, e *entry) {
	if _, ok := seen[key]; !ok {
		seen[key] = e
	}
}

// checkSharedHash catches a fingerprint copied from a capture with prefix cache to
// one without, or the other way round.
func checkSharedHash(entries []entry) {
	cached := make(map[string]*entry)
	for i := range entries {
		if e := &entries[i]; !e.isNoCache() {
			remember(cached, e.ConfigHash, e)
		}
	}
	for _, e := range entries {
		if other, ok := cached[e.ConfigHash]; ok && e.isNoCache() && isDigest(e.ConfigHash) {
			e.fail(codeSharedHash, "config_hash", fmt.Sprintf("golden %s ran without prefix cache, but has the config_hash of %s, which ran with it (line %d of this file)",
				e.ID, other.ID, other.Pos), "take config_hash from the meta line of its trace")
		}
	}
}

// checkRC warns once: what a candidate did is of no use when the next one is out.
func checkRC(entries []entry) {
	for _, e := range entries {
		if e.Line == "rc" {
			e.warn(codeRC, "line", "the tracker rc has goldens, which every new candidate makes obsolete", "register them when the release is out")
			return
		}
	}
}
