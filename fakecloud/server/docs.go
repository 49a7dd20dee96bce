package server

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"

	"github.com/gorilla/mux"
	swagger "github.com/swaggest/swgui/v5/static"
)

// docsPolicy lets the page load what is served beside it, and nothing else. Swagger UI
// writes style attributes.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed docs/index.html docs/init.js docs/dark.css
var docs embed.FS

// docsFile is one file of the documentation page.
type docsFile struct {
	contentType string
	plain, gzip []byte // gzip is nil for what is small
}

// docsFiles gives the page's files by name. The name of the page itself is empty.
func docsFiles() (map[string]docsFile, error) {
	all := map[string]docsFile{}
	for name, from := range map[string]struct {
		files fs.FS
		path  string
	}{
		"":                     {docs, "docs/index.html"},
		"init.js":              {docs, "docs/init.js"},
		"dark.css":             {docs, "docs/dark.css"},
		"favicon-32x32.png":    {swagger.FS, "favicon-32x32.png"},
		"swagger-ui.css":       {swagger.FS, "swagger-ui.css.gz"},
		"swagger-ui-bundle.js": {swagger.FS, "swagger-ui-bundle.js.gz"},
	} {
		data, err := fs.ReadFile(from.files, from.path)
		if err != nil {
			return nil, err
		}
		f := docsFile{contentType: mime.TypeByExtension(path.Ext(strings.TrimSuffix(from.path, ".gz"))), plain: data}
		if strings.HasSuffix(from.path, ".gz") {
			f.gzip, f.plain = data, nil
		}
		all[name] = f
	}
	return all, nil
}

// serveDocs adds the page to the router. Only the page itself is in the API's spec; the
// files it loads are not part of the API.
func (s *Server) serveDocs(router *mux.Router) (err error) {
	if s.docs, err = docsFiles(); err != nil {
		return fmt.Errorf("the docs page: %w", err)
	}
	router.Path("/docs").Methods(http.MethodGet).Handler(http.RedirectHandler("docs/", http.StatusMovedPermanently))
	for name := range s.docs {
		if name != "" {
			router.Path("/docs/" + name).Methods(http.MethodGet).HandlerFunc(s.getDocs)
		}
	}
	return nil
}

func (s *Server) getDocs(w http.ResponseWriter, r *http.Request) {
	f := s.docs[strings.TrimPrefix(r.URL.Path, "/docs/")]
	h := w.Header()
	h.Set("Content-Security-Policy", docsPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "max-age=3600")
	body := f.plain
	if f.gzip != nil {
		h.Set("Vary", "Accept-Encoding")
		if body = f.gzip; strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
		} else {
			var err error
			if body, err = gunzip(f.gzip); err != nil {
				s.answerError(w, r, err)
				return
			}
		}
	}
	s.answerPlain(w, r, http.StatusOK, f.contentType, body)
}

func gunzip(data []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
