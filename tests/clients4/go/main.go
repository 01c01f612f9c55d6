// Runs scenarios with client-go v2 against a cluster: scenarios NAMESERVER RUN NAME ...
//
// RUN is what topics and groups are named after; the topics are there already, with two queues at each of two
// brokers. Without words, the names of all scenarios are printed. Each prints one line when it has ended,
// "@outcome " and a JSON object: {"outcome": {...}, "scenario": "send_sync", "seconds": 1.4}
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	threads = 4 // scenarios at a time: they mostly wait
	wait    = 60 * time.Second
	poll    = 20 * time.Millisecond
)

var all = map[string]func(*scene){
	"send_sync":         sendSync,
	"send_batch":        sendBatch,
	"send_async":        sendAsync,
	"send_oneway":       sendOneway,
	"send_delayed":      sendDelayed,
	"send_transactions": sendTransactions,
	"send_request":      sendRequest,
	"push_tags":         pushTags,
	"push_sql":          pushSQL,
	"push_orderly":      pushOrderly,
	"push_broadcast":    pushBroadcast,
	"push_failing":      pushFailing,
	"pull_polled":       pullPolled,
	"admin_topics":      adminTopics,
}

var varying = map[string]bool{
	"UNIQ_KEY": true, "ORIGIN_MESSAGE_ID": true, "CORRELATION_ID": true, "REPLY_TO_CLIENT": true, "CONSUME_START_TIME": true,
	"MIN_OFFSET": true, "MAX_OFFSET": true, "ARRIVE_TIME": true, "PUSH_REPLY_TIME": true, "__transactionId__": true,
}

// scene is one scenario under way: its names, its clients, and what it has to say.
type scene struct {
	names   []string
	topic   string
	group   string
	said    map[string]any
	ends    []func() error
	clients int
}

func main() {
	rlog.SetLogLevel("fatal")
	if len(os.Args) == 1 {
		for _, name := range sorted(keys(all)) {
			fmt.Println(name)
		}
		return
	}
	var group sync.WaitGroup
	free := make(chan bool, threads)
	for _, name := range os.Args[3:] {
		play := all[name]
		if play == nil {
			fmt.Fprintln(os.Stderr, "there is no scenario", name)
			os.Exit(2)
		}
		group.Add(1)
		free <- true
		go func() {
			s := &scene{
				names: strings.Split(os.Args[1], ","),
				topic: "T_" + os.Args[2] + "_" + name,
				group: "G_" + os.Args[2] + "_" + name,
				said:  map[string]any{},
			}
			s.run(name, play)
			<-free
			group.Done()
		}()
	}
	group.Wait()
}

func (s *scene) run(name string, play func(*scene)) {
	began := time.Now()
	func() {
		defer func() {
			if problem := recover(); problem != nil {
				s.said["error"] = fmt.Sprint(problem)
			}
		}()
		play(s)
	}()
	seconds := float64(time.Since(began).Milliseconds()) / 1000
	line, err := json.Marshal(map[string]any{"outcome": s.said, "scenario": name, "seconds": seconds})
	check(err)
	fmt.Println("@outcome " + string(line))
	for at := len(s.ends) - 1; at >= 0; at-- {
		s.ends[at]()
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *scene) instance() string {
	s.clients++
	return fmt.Sprintf("%s-%d", s.group, s.clients)
}

func (s *scene) producer(options ...producer.Option) rocketmq.Producer {
	options = append(options, producer.WithNameServer(s.names), producer.WithGroupName(s.group+"_p"), producer.WithInstanceName(s.instance()))
	made, err := rocketmq.NewProducer(options...)
	check(err)
	check(made.Start())
	s.ends = append(s.ends, made.Shutdown)
	return made
}

func (s *scene) message(tag, key, body string) *primitive.Message {
	made := primitive.NewMessage(s.topic, []byte(body))
	made.WithTag(tag)
	made.WithKeys([]string{key})
	return made
}

// got is what a consumer was given.
type got struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
	times    map[string]time.Time
	tries    map[string][]int32
}

func (g *got) add(messages []*primitive.MessageExt) {
	g.lock.Lock()
	defer g.lock.Unlock()
	for _, each := range messages {
		body := string(each.Body)
		g.messages = append(g.messages, each)
		g.tries[body] = append(g.tries[body], each.ReconsumeTimes)
		if _, known := g.times[body]; !known {
			g.times[body] = time.Now()
		}
	}
}

func (g *got) count() int {
	g.lock.Lock()
	defer g.lock.Unlock()
	return len(g.messages)
}

func (g *got) triesOf(body string) []int32 {
	g.lock.Lock()
	defer g.lock.Unlock()
	return append([]int32{}, g.tries[body]...)
}

func (g *got) bodies() []string {
	g.lock.Lock()
	defer g.lock.Unlock()
	found := []string{}
	for _, each := range g.messages {
		found = append(found, string(each.Body))
	}
	return sorted(found)
}

// ordered tells whether each queue's messages came by their offsets, each once.
func (g *got) ordered() bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	last := map[string]int64{}
	for _, each := range g.messages {
		queue := fmt.Sprint(each.Queue.BrokerName, each.Queue.QueueId)
		if before, known := last[queue]; known && before >= each.QueueOffset {
			return false
		}
		last[queue] = each.QueueOffset
	}
	return true
}

var everything = consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}

type listener = func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (s *scene) push(selector consumer.MessageSelector, listen listener, options ...consumer.Option) rocketmq.PushConsumer {
	options = append([]consumer.Option{
		consumer.WithNameServer(s.names), consumer.WithGroupName(s.group), consumer.WithInstance(s.instance()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, options...)
	made, err := rocketmq.NewPushConsumer(options...)
	check(err)
	check(made.Subscribe(s.topic, selector, listen))
	check(made.Start())
	s.ends = append(s.ends, made.Shutdown)
	return made
}

// collect starts a consumer that succeeds with all messages.
func (s *scene) collect(selector consumer.MessageSelector, options ...consumer.Option) *got {
	g := &got{times: map[string]time.Time{}, tries: map[string][]int32{}}
	s.push(selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		g.add(messages)
		return consumer.ConsumeSuccess, nil
	}, options...)
	return g
}

// properties are a message's: names, and the values of those that don't depend on the run.
func (s *scene) properties(message *primitive.Message) []string {
	found := []string{}
	for name, value := range message.GetProperties() {
		if !varying[name] {
			value = strings.ReplaceAll(strings.ReplaceAll(value, s.topic, "TOPIC"), s.group, "GROUP")
			name += "=" + value
		}
		found = append(found, name)
	}
	return sorted(found)
}

func (s *scene) await(what string, holds func() bool) {
	for end := time.Now().Add(wait); !holds(); time.Sleep(poll) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("not within %s: %s", wait, what))
		}
	}
}

func answer(result *primitive.SendResult, err error) string {
	if err != nil {
		return failure(err)
	}
	return fmt.Sprintf("status %d, offset %d, region %s", result.Status, result.QueueOffset, result.RegionID)
}

// failure names an error without what differs between runs.
func failure(err error) string {
	var broker primitive.MQBrokerErr
	if errors.As(err, &broker) {
		return fmt.Sprintf("broker says %d", broker.ResponseCode)
	}
	return "an error"
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}

func keys[T any](table map[string]T) []string {
	found := []string{}
	for key := range table {
		found = append(found, key)
	}
	return found
}
