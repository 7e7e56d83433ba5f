package frontendsuite

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"strings"
)

// identify asks what the model is called, and what the frontend is. What it does not
// tell stays empty.
func (s *frontendSession) identify(ctx context.Context) {
	var models struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if s.told200(ctx, "/v1/models", &models) && len(models.Data) > 0 {
		s.model = models.Data[0].ID
	}
	// "version" of a Rust frontend is what the engine registered as, and its own was
	// 0.1.0 for years.
	var version struct {
		Version string `json:"version"`
		Rust    string `json:"rust_frontend_version"`
	}
	if s.told200(ctx, "/version", &version) {
		s.version = cmp.Or(version.Rust, version.Version)
		if strings.HasPrefix(s.version, "0.1.") {
			s.version = ""
		}
	}
}

// told200 reads the JSON of an answer with status 200.
func (s *frontendSession) told200(ctx context.Context, path string, into any) bool {
	a, err := s.client.Send(ctx, http.MethodGet, path, nil)
	return err == nil && a.Status == http.StatusOK && json.Unmarshal(a.Body, into) == nil
}
