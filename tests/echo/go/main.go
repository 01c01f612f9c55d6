// The cases of ../README.md with grpc-go.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const service = "/whimbrel.test.Echo/"

type raw struct{}

func (raw) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (raw) Name() string                       { return "raw" }

var both = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

func body(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*31 + i/256)
	}
	return data
}

func hold(name string, truth bool, what any) {
	if !truth {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, what)
		os.Exit(1)
	}
	fmt.Println(name)
}

func soon() context.Context {
	context, _ := context.WithTimeout(context.Background(), 30*time.Second)
	return context
}

func stream(conn *grpc.ClientConn, context context.Context, method string) grpc.ClientStream {
	opened, err := conn.NewStream(context, both, service+method)
	if err != nil {
		hold(method, false, err)
	}
	return opened
}

func received(s grpc.ClientStream, count int, want []byte) error {
	for i := 0; i < count; i++ {
		var got []byte
		if err := s.RecvMsg(&got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d other bytes", len(got))
		}
	}
	var more []byte
	if err := s.RecvMsg(&more); err != io.EOF {
		return fmt.Errorf("no end: %v", err)
	}
	return nil
}

func main() {
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		hold("connect", false, err)
	}
	for _, word := range os.Args[3:] {
		size, _ := strconv.Atoi(word)
		want := body(size)
		var got []byte
		err := conn.Invoke(soon(), service+"Unary", &want, &got)
		hold("unary "+word, err == nil && bytes.Equal(got, want), err)
		for _, method := range []string{"Listed", "Pulled"} {
			s := stream(conn, soon(), method)
			s.SendMsg(&want)
			s.CloseSend()
			err = received(s, 3, want)
			hold(map[string]string{"Listed": "listed ", "Pulled": "pulled "}[method]+word, err == nil, err)
		}
		s := stream(conn, soon(), "Gather")
		for i := 0; i < 3; i++ {
			s.SendMsg(&want)
		}
		s.CloseSend()
		err = received(s, 1, want)
		count := s.Trailer().Get("x-count")
		hold("client "+word, err == nil && len(count) == 1 && count[0] == "3", fmt.Sprint(err, count))
		s = stream(conn, soon(), "Both")
		for i := 0; i < 3; i++ {
			s.SendMsg(&want)
			if err = s.RecvMsg(&got); err != nil || !bytes.Equal(got, want) {
				hold("both "+word, false, err)
			}
		}
		s.CloseSend()
		err = received(s, 0, want)
		hold("both "+word, err == nil, err)
	}

	want, got := body(10), []byte{}
	trailer := metadata.MD{}
	err = conn.Invoke(soon(), service+"Fail", &want, &got, grpc.Trailer(&trailer))
	said := status.Convert(err)
	hold("status", said.Code() == codes.NotFound && len(trailer.Get("x-reason")) == 1 &&
		said.Message() == "no such thing: 100 % ümlaut & \"quotes\"", fmt.Sprint(err, trailer))

	sent := metadata.AppendToOutgoingContext(soon(), "x-echo", "hello", "x-echo-bin", "\x00\xff\x80")
	err = conn.Invoke(sent, service+"Unary", &want, &got, grpc.Trailer(&trailer))
	hold("metadata", err == nil && trailer.Get("x-echo")[0] == "hello" &&
		trailer.Get("x-echo-bin")[0] == "\x00\xff\x80", fmt.Sprint(err, trailer))

	var group sync.WaitGroup
	many, _ := strconv.Atoi(os.Args[2])
	errors := make(chan error, many)
	for i := 0; i < many; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			mine, back := body(i), []byte(nil)
			if err := conn.Invoke(soon(), service+"Unary", &mine, &back); err != nil || !bytes.Equal(mine, back) {
				errors <- fmt.Errorf("call %d: %v", i, err)
			}
		}()
	}
	group.Wait()
	close(errors)
	err = <-errors
	hold("many", err == nil, err)

	short, stop := context.WithTimeout(context.Background(), 200*time.Millisecond)
	err = conn.Invoke(short, service+"Never", &want, &got)
	stop()
	hold("deadline", status.Code(err) == codes.DeadlineExceeded, err)

	ended, stop := context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, stop)
	err = conn.Invoke(ended, service+"Never", &want, &got)
	ended, stop = context.WithCancel(context.Background())
	s := stream(conn, ended, "Both")
	s.SendMsg(&want)
	first := s.RecvMsg(&got)
	stop()
	second := s.RecvMsg(&got)
	hold("cancel", status.Code(err) == codes.Canceled && first == nil && status.Code(second) == codes.Canceled,
		fmt.Sprint(err, first, second))
	conn.Close()
}
