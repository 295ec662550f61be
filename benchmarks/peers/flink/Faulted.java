import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.RestartStrategyOptions;
import org.apache.flink.configuration.StateRecoveryOptions;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;

/**
 * One job that stops at a named place of its own: its process is halted there, or stands still to be killed.
 *
 * <p>Its arguments are `key=value`: those of the sink, see `Sinks`; `rows` in all and `each`, how many between two
 * checkpoints; `checkpoints` (a folder), and `restore` (a checkpoint's folder to start from). `place` is `committing`
 * (halt, with exit code 137: a checkpoint with `after` rows is complete, its commits have not begun) or `writing` (make
 * the file `mark` and stand still: `after` rows were handed on, and no checkpoint has the last of them). One task does
 * all, so that nothing is committed beside the place.
 */
public final class Faulted {
    private Faulted() {}

    public static void main(String[] words) throws Exception {
        Map<String, String> job = new HashMap<>();
        for (String word : words) {
            int end = word.indexOf('=');
            job.put(word.substring(0, end), word.substring(end + 1));
        }
        Configuration settings = new Configuration();
        settings.set(RestartStrategyOptions.RESTART_STRATEGY, "none");
        settings.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        settings.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, "file://" + job.get("checkpoints"));
        if (job.containsKey("restore")) {
            settings.set(StateRecoveryOptions.SAVEPOINT_PATH, "file://" + job.get("restore"));
        }
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        env.setParallelism(1);
        Columns columns = new Columns("key text,value text");
        DataGeneratorSource<RowData> numbers =
                new DataGeneratorSource<>(
                        Faulted::row,
                        Long.parseLong(job.get("rows")),
                        RateLimiterStrategy.perCheckpoint(Integer.parseInt(job.get("each"))),
                        columns.rows());
        DataStream<RowData> given =
                env.fromSource(numbers, WatermarkStrategy.<RowData>noWatermarks(), "rows", columns.rows());
        given.map(new Stop(job.getOrDefault("place", ""), Long.parseLong(job.getOrDefault("after", "0")), job.get("mark")))
                .returns(columns.rows())
                .sinkTo(new DiscardingSink<>());
        given.sinkTo(Sinks.of(job, columns));
        env.execute();
    }

    private static RowData row(long number) {
        return GenericRowData.of(
                StringData.fromString(Long.toString(number)), StringData.fromString("{\"id\": " + number + "}"));
    }

    /** Passes rows on. Its branch is the task's first one, and hears of a complete checkpoint before the sink's. */
    private static final class Stop implements MapFunction<RowData, RowData>, CheckpointedFunction, CheckpointListener {
        private static final long serialVersionUID = 1;
        private static final int HALTED = 137;
        private final String place;
        private final long after;
        private final String mark;
        private transient long passed;
        private transient long kept;
        private transient boolean pending;

        Stop(String place, long after, String mark) {
            this.place = place;
            this.after = after;
            this.mark = mark;
        }

        @Override
        public RowData map(RowData row) throws Exception {
            if (place.equals("writing") && passed >= after && passed > kept && !pending) {
                Files.createFile(Path.of(mark));
                Thread.currentThread().join(); // for ever
            }
            passed++;
            return row;
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) {
            kept = passed;
            pending = true;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) {}

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            pending = false;
            if (place.equals("committing") && kept >= after) {
                Runtime.getRuntime().halt(HALTED);
            }
        }
    }
}
