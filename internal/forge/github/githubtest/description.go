package githubtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// A description is GitHub's OpenAPI description.
type description struct {
	router  routers.Router
	options *openapi3filter.Options
}

func loadDescription(dir string) (*description, error) {
	text, err := os.ReadFile(filepath.Join(dir, "openapi.json"))
	if err != nil {
		return nil, err
	}
	// A reference may have slashes in it.
	text = bytes.ReplaceAll(text, []byte("/git/ref/{ref}"), []byte("/git/ref/{ref:.+}"))
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil // any address
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, err
	}
	return &description{router, &openapi3filter.Options{
		AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true,
	}}, nil
}

func (d *description) checkRequest(r *http.Request, body []byte) (*openapi3filter.RequestValidationInput, error) {
	route, params, err := d.router.FindRoute(r)
	if err != nil {
		return nil, err
	}
	r.Body = newReader(body)
	input := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route, Options: d.options}
	if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
		return nil, err
	}
	return input, unknownFields(route, body)
}

// unknownFields refuses what the description does not have: GitHub would pass over it in silence.
func unknownFields(route *routers.Route, body []byte) error {
	if len(body) == 0 {
		return nil
	}
	if route.Operation.RequestBody == nil {
		return errors.New("this request has no body")
	}
	var fields map[string]any
	if err := json.Unmarshal(body, &fields); err != nil {
		return err
	}
	schema := route.Operation.RequestBody.Value.Content.Get("application/json").Schema.Value
	known := schema.Properties
	if len(schema.OneOf) > 0 {
		known = schema.OneOf[0].Value.Properties
	}
	for name := range fields {
		if known[name] == nil {
			return fmt.Errorf("%q is no field of this request", name)
		}
	}
	return nil
}

func newReader(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
