// Serves fake-gcs-server for tests, with what it lacks of Google Cloud Storage's XML API.
//
// Uploads of the XML API become uploads of the JSON API, which it has, with the condition that they carry: whether an
// object is there is its own decision. Everything else passes as it is.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/fsouza/fake-gcs-server/fakestorage"
)

func main() {
	address := flag.String("address", "127.0.0.1:0", "where to listen")
	bucket := flag.String("bucket", "", "a bucket that is there from the beginning")
	directory := flag.String("directory", "", "where objects lie")
	flag.Parse()
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		NoListener:  true,
		PublicHost:  *address,
		StorageRoot: *directory,
	})
	if err != nil {
		log.Fatal(err)
	}
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: *bucket})
	log.Fatal(http.ListenAndServe(*address, uploads(server.HTTPHandler())))
}

func uploads(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bucket, name, isObject := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if r.Method != http.MethodPut || !isObject {
			inner.ServeHTTP(w, r)
			return
		}
		query := url.Values{"uploadType": {"media"}, "name": {name}}
		if match := r.Header.Get("x-goog-if-generation-match"); match != "" {
			query.Set("ifGenerationMatch", match)
		}
		upload := r.Clone(r.Context())
		upload.Method = http.MethodPost
		upload.URL = &url.URL{Path: "/upload/storage/v1/b/" + bucket + "/o", RawQuery: query.Encode()}
		answer := httptest.NewRecorder()
		inner.ServeHTTP(answer, upload)
		var object struct{ Etag, Generation string }
		if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &object) == nil {
			w.Header().Set("ETag", object.Etag)
			w.Header().Set("x-goog-generation", object.Generation)
			w.WriteHeader(answer.Code)
			return
		}
		w.WriteHeader(answer.Code)
		w.Write(answer.Body.Bytes())
	})
}
