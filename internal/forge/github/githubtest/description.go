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

func (d *description) checkAnswer(input *openapi3filter.RequestValidationInput, status int, text []byte) error {
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: status, Options: d.options,
		Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}},
	}
	output.SetBodyBytes(text)
	return openapi3filter.ValidateResponse(context.Background(), output)
}

// whole adds to an answer what the description demands and no client here reads.
func (d *description) whole(input *openapi3filter.RequestValidationInput, status int, body any) (any, error) {
	response := input.Route.Operation.Responses.Status(status)
	if response == nil {
		return nil, fmt.Errorf("GitHub does not answer this with %d", status)
	}
	content := response.Value.Content.Get("application/json")
	if content == nil {
		return body, nil
	}
	return overlay(content.Schema.Value, body), nil
}

// overlay returns the least value of a schema with value over it.
func overlay(schema *openapi3.Schema, value any) any {
	switch v := value.(type) {
	case map[string]any:
		for _, part := range parts(schema) {
			for _, name := range part.Required {
				if _, ok := v[name]; !ok && part.Properties[name] != nil {
					v[name] = least(part.Properties[name].Value)
				}
			}
			for name, ref := range part.Properties {
				if inner, ok := v[name]; ok {
					v[name] = overlay(ref.Value, inner)
				}
			}
		}
	case []any:
		for _, part := range parts(schema) {
			if part.Items == nil {
				continue
			}
			for i := range v {
				v[i] = overlay(part.Items.Value, v[i])
			}
		}
	}
	return value
}

// parts are a schema and those that it is made of, of alternatives the first.
func parts(schema *openapi3.Schema) []*openapi3.Schema {
	all := []*openapi3.Schema{schema}
	for _, ref := range schema.AllOf {
		all = append(all, parts(ref.Value)...)
	}
	for _, alternatives := range []openapi3.SchemaRefs{schema.OneOf, schema.AnyOf} {
		if len(alternatives) > 0 {
			all = append(all, parts(alternatives[0].Value)...)
		}
	}
	return all
}

// least is the least value that a schema takes.
func least(schema *openapi3.Schema) any {
	if schema.Nullable {
		return nil
	}
	for _, part := range parts(schema) {
		switch {
		case len(part.Enum) > 0:
			return part.Enum[0]
		case part.Type.Is("object") || len(part.Properties) > 0:
			return overlay(schema, map[string]any{})
		case part.Type.Is("array"):
			return []any{}
		case part.Type.Is("boolean"):
			return false
		case part.Type.Is("integer") || part.Type.Is("number"):
			return 0
		case part.Type.Is("string"):
			return leastText(part.Format)
		}
	}
	return map[string]any{}
}

func leastText(format string) string {
	switch format {
	case "date-time":
		return "2026-01-01T00:00:00Z"
	case "uri":
		return "https://github.invalid/"
	}
	return ""
}

func newReader(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }
