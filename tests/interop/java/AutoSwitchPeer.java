import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.autoswitch.AutoSwitchHAService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * A store of RocketMQ's controller mode without a broker, as either end of its replication.
 *
 * <p>Arguments: directory, port to listen on, size of a log file, own id, heartbeat interval in ms. Standard input, a
 * command a line: "master EPOCH", "slave EPOCH HOST:PORT", "put COUNT BYTES", "state", "stop". Each is answered by a
 * line: the log's end, the confirm offset, the list of epochs as epoch:start,... or "-".
 */
public final class AutoSwitchPeer {
    private static String state(DefaultMessageStore store) {
        List<EpochEntry> entries = ((AutoSwitchHAService) store.getHaService()).getEpochEntries();
        String text = entries.stream()
            .map(entry -> entry.getEpoch() + ":" + entry.getStartOffset())
            .collect(Collectors.joining(","));
        return store.getMaxPhyOffset() + " " + store.getConfirmOffset() + " " + (text.isEmpty() ? "-" : text);
    }

    private static void put(DefaultMessageStore store, Random chance, int count, int bytes) throws Exception {
        for (int number = 0; number < count; number++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            byte[] body = new byte[bytes];
            chance.nextBytes(body);
            message.setTopic("interop");
            message.setBody(body);
            message.setKeys("k" + number);
            message.setQueueId(0);
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 2));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            System.err.println(store.putMessage(message).getPutMessageStatus());
        }
    }

    public static void main(String[] arguments) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        broker.setEnableControllerMode(true);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments[0]);
        config.setStorePathCommitLog(arguments[0] + File.separator + "commitlog");
        config.setHaListenPort(Integer.parseInt(arguments[1]));
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[2]));
        config.setHaSendHeartbeatInterval(Integer.parseInt(arguments[4]));
        config.setBrokerRole(BrokerRole.SLAVE);
        config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
        config.setInSyncReplicas(1);
        config.setTotalReplicas(2);
        BrokerStatsManager stats = new BrokerStatsManager("interop", false);
        DefaultMessageStore store =
            new DefaultMessageStore(config, stats, null, broker, new ConcurrentHashMap<>());
        AutoSwitchHAService service = (AutoSwitchHAService) store.getHaService();
        long id = Long.parseLong(arguments[3]);
        service.setLocalBrokerId(id);
        store.load();
        store.start();
        Random chance = new Random(id);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("master")) {
                service.setSyncStateSet(new HashSet<>(Arrays.asList(id)));
                service.changeToMaster(Integer.parseInt(words[1]));
                config.setBrokerRole(BrokerRole.ASYNC_MASTER);
            } else if (words[0].equals("slave")) {
                service.changeToSlave("", Integer.parseInt(words[1]), id);
                service.updateHaMasterAddress(words[2]);
            } else if (words[0].equals("put")) {
                put(store, chance, Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            } else if (words[0].equals("stop")) {
                break;
            }
            System.out.println(state(store));
        }
        store.shutdown();
        System.exit(0);
    }
}
