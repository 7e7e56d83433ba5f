package manifest

import "time"

// pair is a key of a golden and its value; nil if the golden does not have it.
type pair struct {
	key   string
	value any
}

// pairs lists the keys of a golden in the order they are written in.
func pairs(g Golden) []pair {
	return []pair{
		{"line", text(g.Line)},
		{"id", text(g.ID)},
		{"bucket_path", text(g.BucketPath)},
		{"sha256", text(g.SHA256)},
		{"config_hash", text(g.ConfigHash)},
		{"workload", text(g.Workload)},
		{"role", text(g.Role)},
		{"size", number(g.Size)},
		{"records", number(g.Records)},
		{"streams", number(g.Streams)},
		{"tokens", number(g.Tokens)},
		{"tokens_sha256", text(g.TokensSHA256)},
		{"vllm_version", text(g.VLLMVersion)},
		{"engine_image", text(g.EngineImage)},
		{"gpu", text(g.GPU)},
		{"model", text(g.Model)},
		{"scenario", text(g.Scenario)},
		{"seed", seedValue(g.Seed)},
		{"engine_config", text(g.EngineConfig)},
		{"captured_at", timeValue(g.CapturedAt)},
		{"capture_run", text(g.CaptureRun)},
		{"recorder_version", text(g.RecorderVersion)},
		{"version_id", text(g.VersionID)},
		{"mirrors", list(g.Mirrors)},
		{"visibility", text(g.Visibility)},
		{"license", text(g.License)},
		{"notes", text(g.Notes)},
	}
}

// keys are the keys of a golden in their order.
func keys() []string {
	var names []string
	for _, p := range pairs(Golden{}) {
		names = append(names, p.key)
	}
	return names
}

func text[T ~string](s T) any {
	if s == "" {
		return nil
	}
	return string(s)
}

func number[T int | int64](n T) any {
	if n == 0 {
		return nil
	}
	return int64(n)
}

func seedValue(seed *int64) any {
	if seed == nil {
		return nil
	}
	return *seed
}

func timeValue(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC()
}

func list(values []string) any {
	if len(values) == 0 {
		return nil
	}
	return values
}
