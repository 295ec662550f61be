import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.graph.StreamGraph;
import org.apache.flink.table.data.RowData;

/**
 * A Flink cluster in one JVM that stays warm: each line of standard input is a job, and each gets a line of answer.
 *
 * <p>A job is `key=value` pairs with tabs between them: see `Sources` and `Sinks` for theirs. Beside those:
 * `columns` (`name type,name type`), `checkpoints` (a folder), and `restore` (a checkpoint's folder to start from).
 * The answer is `done MILLISECONDS`, from submission to the job's end, or `failed WHY`.
 */
public final class Peer {
    private static final int PARALLELISM = 2;
    private static final Duration BETWEEN_CHECKPOINTS = Duration.ofSeconds(1);
    private static final Duration PAUSE = Duration.ofMillis(500); // the JDBC sink fails at a second one after its end

    private Peer() {}

    public static void main(String[] words) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Configuration settings = new Configuration();
        settings.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(64));
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none"); // who measures wants to see a failure
        MiniClusterConfiguration cluster =
                new MiniClusterConfiguration.Builder()
                        .setConfiguration(settings)
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(PARALLELISM)
                        .withRandomPorts()
                        .build();
        try (MiniCluster flink = new MiniCluster(cluster)) {
            flink.start();
            answer("ready");
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                answer(run(flink, parse(line)));
            }
        }
    }

    private static String run(MiniCluster flink, Map<String, String> job) {
        try {
            long started = System.nanoTime();
            flink.executeJobBlocking(graph(job).getJobGraph());
            return "done " + (System.nanoTime() - started) / 1_000_000;
        } catch (Exception failure) {
            failure.printStackTrace();
            Throwable cause = failure;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            return "failed " + String.valueOf(cause).replace('\n', ' ');
        }
    }

    private static StreamGraph graph(Map<String, String> job) {
        Configuration settings = new Configuration();
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, BETWEEN_CHECKPOINTS);
        settings.set(CheckpointingOptions.MIN_PAUSE_BETWEEN_CHECKPOINTS, PAUSE);
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + job.get("checkpoints"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(PARALLELISM);
        env.getConfig().enableObjectReuse();
        Columns columns = new Columns(job.get("columns"));
        env.fromSource(Sources.of(job, columns), WatermarkStrategy.<RowData>noWatermarks(), "rows", columns.rows())
                .sinkTo(Sinks.of(job, columns));
        StreamGraph graph = env.getStreamGraph();
        if (job.containsKey("restore")) {
            graph.setSavepointRestoreSettings(SavepointRestoreSettings.forPath("file://" + job.get("restore")));
        }
        return graph;
    }

    private static Map<String, String> parse(String line) {
        Map<String, String> job = new HashMap<>();
        for (String pair : line.split("\t")) {
            int end = pair.indexOf('=');
            job.put(pair.substring(0, end), pair.substring(end + 1));
        }
        return job;
    }

    private static void answer(String text) {
        System.out.println(text);
        System.out.flush();
    }
}
