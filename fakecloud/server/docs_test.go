package server_test

import (
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// The page asks this server only, for what it has, and lets nothing else run.
func TestDocsPageWorksOffline(t *testing.T) {
	r := newRig(t)
	var last *url.URL // where redirects led
	get := func(target string, header ...string) bufferedAnswer {
		req := must.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+target, nil))(t)
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp := must.Do(http.DefaultClient.Do(req))(t)
		defer func() { _ = resp.Body.Close() }()
		body := must.Do(io.ReadAll(resp.Body))(t)
		last = resp.Request.URL
		return bufferedAnswer{resp.StatusCode, resp.Header, string(body)}
	}
	page := get("/docs")
	assert.Equal(t, "/docs/", last.Path)
	assert.Equal(t, 200, page.StatusCode)
	assert.Contains(t, page.Header.Get("Content-Type"), "text/html")
	policy := page.Header.Get("Content-Security-Policy")
	assert.Contains(t, policy, "default-src 'none'; script-src 'self';")
	assert.NotRegexp(t, `<script>|<style|https?:|\son[a-z]+=`, page.Body, "nothing that the policy forbids")
	parts := regexp.MustCompile(`(?:src|href)="([^"]+)"`).FindAllStringSubmatch(page.Body, -1)
	require.Len(t, parts, 6)
	for _, part := range parts {
		zipped := get(path.Join("/docs", part[1]))
		assert.Equal(t, 200, zipped.StatusCode, part[1])
		assert.NotEmpty(t, zipped.Body)
		assert.Equal(t, zipped.Body, get(path.Join("/docs", part[1]), "Accept-Encoding", "identity").Body, part[1])
	}
	assert.Contains(t, get("/docs/init.js").Body, `url: "../openapi.yaml"`)
	assert.Contains(t, get("/docs/swagger-ui-bundle.js").Body, "SwaggerUIBundle")
	assert.Equal(t, 404, get("/docs/../serve.go").StatusCode)
}

// What the spec says of each operation is whole, and its examples fit it.
func TestTheSpecIsWhole(t *testing.T) {
	spec := must.Do(openapi3.NewLoader().LoadFromData(api.Spec))(t)
	require.NoError(t, spec.Validate(t.Context()))
	codes := spec.Components.Schemas["ProblemCode"].Value.Enum
	tags := map[string]bool{}
	for _, tag := range spec.Tags {
		tags[tag.Name] = true
	}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			at := method + " " + path
			assert.NotEmpty(t, op.OperationID, at)
			assert.NotEmpty(t, op.Summary, at)
			if assert.Len(t, op.Tags, 1, at) {
				assert.True(t, tags[op.Tags[0]], "%s: tag %s", at, op.Tags[0])
			}
			problems, _ := op.Extensions["x-problems"].([]any)
			assert.NotEmpty(t, problems, at)
			assert.Subset(t, codes, problems, at)
			if op.Security == nil {
				assert.Subset(t, problems, []any{"invalid-request", "unauthenticated", "rate-limited"}, at)
			}
			assert.NotNil(t, op.Responses.Default(), at)
			if op.RequestBody != nil {
				assert.Contains(t, problems, "too-large", at)
				assert.Contains(t, op.RequestBody.Value.Content, "application/json", at)
				requireExamples(t, at+" request", op.RequestBody.Value.Content)
			}
			for status, resp := range op.Responses.Map() {
				if status != "204" {
					requireExamples(t, at+" "+status, resp.Value.Content)
				}
			}
		}
	}
}

// requireExamples wants each kind of content to have an example, of its own or
// of its schema, that fits.
func requireExamples(t *testing.T, at string, content openapi3.Content) {
	t.Helper()
	require.NotEmpty(t, content, at)
	for kind, media := range content {
		require.NotNil(t, media.Schema, at)
		example := media.Example
		if example == nil {
			example = media.Schema.Value.Example
		}
		if assert.NotNil(t, example, "%s %s: no example", at, kind) {
			assert.NoError(t, media.Schema.Value.VisitJSON(example, openapi3.MultiErrors()), "%s %s", at, kind)
		}
	}
}
